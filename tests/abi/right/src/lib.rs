//! One of two plugins in one process.

metrale_plugin_api::export_plugin!(tiny::Tiny<2>);
