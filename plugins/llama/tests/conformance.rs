//! What every plugin must keep.

metrale_conformance::suite!(metrale_llama::plugin_module());
