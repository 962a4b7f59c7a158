//! What every plugin must keep.

metrale_conformance::suite!(metrale_glm_mtp::plugin_module());
