//! What every plugin must keep.

metrale_conformance::suite!(metrale_minimax_m2::plugin_module());
