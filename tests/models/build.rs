//! Builds the library's source with `cfg(loom)`. The setting is for this package alone: its dependencies are built as
//! always.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-cfg=loom");
    // The recorder demangles C++ names with the C++ runtime.
    println!("cargo::rustc-link-lib=stdc++");
    println!("cargo::rerun-if-changed=build.rs");
}
