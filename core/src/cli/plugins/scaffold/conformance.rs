//! What every plugin must keep, on the models in `configs/`. One test per level.

metrale_conformance::suite!(metrale_{{crate}}::plugin_module());
