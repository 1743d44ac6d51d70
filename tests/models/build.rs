//! The library's source is built for the models. Set for this package alone: what it depends on is as always.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-cfg=loom");
    // The recorder demangles names of C++ with the C++ runtime.
    println!("cargo::rustc-link-lib=stdc++");
    println!("cargo::rerun-if-changed=build.rs");
}
