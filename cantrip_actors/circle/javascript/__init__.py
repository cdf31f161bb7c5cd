"""The JavaScript medium: an entity's programs run in QuickJS, compiled to WebAssembly."""
