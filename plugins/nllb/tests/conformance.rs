//! What every plugin must keep.

metrale_conformance::suite!(metrale_nllb::plugin_module());
