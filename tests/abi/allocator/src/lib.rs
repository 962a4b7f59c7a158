//! A plugin with its own global allocator.

#[path = "../../tagging.rs"]
mod tagging;

#[global_allocator]
static ALLOCATOR: tagging::Tagging<0x70_6c_75_67_69_6e> = tagging::Tagging;

metrale_plugin_api::export_plugin!(tiny::Tiny<3>);
