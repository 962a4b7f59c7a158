//! What every plugin must keep.

metrale_conformance::suite!(metrale_qwen3_ssm::plugin_module());
