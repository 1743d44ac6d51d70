//! Compiles the C++ adapters, compresses the page of reports, and sets how the library is linked.

#[path = "src/soname.rs"]
mod soname;

fn main() {
    compress_page();
    let bridges = [
        "src/ffi/tensorrt/allocator_bridge.rs",
        "src/ffi/tensorrt/client.rs",
        "src/ffi/tensorrt/output_bridge.rs",
    ];
    let sources = [
        "cpp/tensorrt8.cpp",
        "cpp/tensorrt10.cpp",
        "cpp/output.cpp",
        "cpp/output_rtx.cpp",
        "cpp/client.cpp",
        "cpp/no_streams.cpp",
    ];
    let headers = [
        "cpp/adapter.h",
        "cpp/client.h",
        "cpp/hidden.h",
        "cpp/output.h",
        "cpp/output10.h",
        "cpp/output8.h",
        "cpp/output_adapter.h",
        "cpp/output_rtx.h",
        "cpp/slot.h",
        "cpp/tensorrt10.h",
        "cpp/tensorrt8.h",
    ];

    let mut bridge = cxx_build::bridges(bridges);
    if std::env::var_os("CARGO_FEATURE_ALONE").is_some() {
        bridge.define("TRTALLOC_ALONE", None);
    }
    bridge
        .files(sources)
        .std("c++17")
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        // Nothing that the adapters call throws. With exceptions, the library would have the C++ runtime's code for them.
        .flag("-fno-exceptions")
        .flag("-Wall")
        .flag("-Wextra")
        .compile("trtalloc_cpp");
    for path in bridges.iter().chain(&sources).chain(&headers) {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-changed=build.rs");

    // Interposing names of other libraries needs assembly for the machine.
    println!("cargo:rustc-check-cfg=cfg(interposes)");
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if std::env::var_os("CARGO_FEATURE_INTERPOSE").is_some() && ["x86_64", "aarch64"].contains(&machine.as_str()) {
        println!("cargo:rustc-cfg=interposes");
    }

    // The C++ runtime is linked in, because a program that preloads the library may bring a newer runtime. In this
    // crate's artefacts it is linked by its file name, so that the compiler finds it in its own folder, and at the end
    // of the line, so that every object can use it. (link-cplusplus, which cxx uses, is configured to link nothing.)
    for argument in ["-l:libstdc++.a", "-lm"] {
        println!("cargo:rustc-link-arg={argument}");
    }
    // These arguments do not reach a Rust program that depends on this crate; a declared library does.
    if let Some(folder) = runtime_folder() {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static:-bundle=stdc++");
    }

    let soname = soname();
    println!("cargo:rustc-env=TRTALLOC_SONAME={soname}");
    for argument in [
        &format!("-Wl,-soname,{soname}"),
        // Hides cxx's names and the C++ runtime's from other libraries.
        "-Wl,--exclude-libs,ALL",
        // TensorRT may call back after dlclose.
        "-Wl,-z,nodelete",
        "-Wl,-z,defs",
        // The library uses no C++ streams: see cpp/no_streams.cpp.
        "-Wl,--wrap=_ZNSt8ios_base4InitC1Ev",
        "-Wl,--wrap=_ZNSt8ios_base4InitD1Ev",
        "-Wl,--wrap=_ZSt21ios_base_library_initv",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    link_into_library("cpp/cxx_names.c");
    // Its functions are in assembly for the machine.
    if ["x86_64", "aarch64"].contains(&machine.as_str()) {
        link_unwinder();
    }
    if std::env::var_os("CARGO_FEATURE_PORTABLE").is_some() {
        link_old_glibc();
    }
}

/// The functions of libgcc_s for which cpp/unwinder.c has `__wrap_NAME`.
const UNWINDER: &[&str] = &[
    "_Unwind_Backtrace",
    "_Unwind_DeleteException",
    "_Unwind_FindEnclosingFunction",
    "_Unwind_ForcedUnwind",
    "_Unwind_GetCFA",
    "_Unwind_GetDataRelBase",
    "_Unwind_GetGR",
    "_Unwind_GetIP",
    "_Unwind_GetIPInfo",
    "_Unwind_GetLanguageSpecificData",
    "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_SetGR",
    "_Unwind_SetIP",
];

/// Makes the library look the functions of libgcc_s up when they are first called, so that it loads faster.
fn link_unwinder() {
    link_into_library("cpp/unwinder.c");
    for name in UNWINDER {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
}

/// Links a file in C into the library alone, and not into the command or a Rust program.
fn link_into_library(file: &str) {
    println!("cargo:rerun-if-changed={file}");
    let objects = cc::Build::new()
        .file(file)
        .flag("-Wall")
        .flag("-Wextra")
        .compile_intermediates();
    for object in objects {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
}

/// The functions for which cpp/glibc.c has `__wrap_NAME`.
const WRAPPED: &[&str] = &[
    "__pthread_key_create",
    "_dl_find_object",
    "dladdr",
    "dladdr1",
    "dlclose",
    "dlerror",
    "dlinfo",
    "dlopen",
    "dlvsym",
    "exp",
    "exp2",
    "fstat",
    "fstat64",
    "fstatat",
    "fstatat64",
    "gettid",
    "log",
    "log2",
    "lstat",
    "lstat64",
    // This one is left out. Rust's library refers to it weakly, and does without where it is missing.
    "posix_spawn_file_actions_addchdir_np",
    "pow",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_getspecific",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_once",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
    "stat",
    "stat64",
];

/// Links the library and the command so that they run with glibc 2.28, whichever newer one they are built with.
fn link_old_glibc() {
    let object = |file: &str| {
        println!("cargo:rerun-if-changed={file}");
        let mut build = cc::Build::new();
        build
            .file(file)
            .flag("-fvisibility=hidden")
            .flag("-Wall")
            .flag("-Wextra");
        build.compile_intermediates().remove(0)
    };
    let mut both = vec![object("cpp/glibc.c").display().to_string()];
    both.extend(WRAPPED.iter().map(|name| format!("-Wl,--wrap={name}")));
    // Behind the object that calls its functions.
    both.push("-lm".to_owned());
    // An older glibc has threads and dlopen in libraries of their own. A newer one has empty libraries of that name.
    both.push("-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--pop-state".to_owned());
    let start = object("cpp/glibc_start.c").display().to_string();
    for argument in &both {
        println!("cargo:rustc-cdylib-link-arg={argument}");
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    for argument in [&start, "-Wl,--wrap=__libc_start_main"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}

/// The soname in Cargo.toml, which CMake reads too. Fails if it does not match the version.
fn soname() -> String {
    for path in ["Cargo.toml", "src/soname.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let manifest = std::fs::read_to_string("Cargo.toml").expect("Cargo.toml is readable");
    let named = manifest
        .lines()
        .find_map(|line| line.strip_prefix("soname = \"")?.strip_suffix('"'));
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let needed = soname::soname_of(&version);
    assert_eq!(
        named,
        Some(needed.as_str()),
        "Cargo.toml: the soname of version {version}"
    );
    needed
}

/// The folder with the static library of the C++ compiler's runtime.
fn runtime_folder() -> Option<std::path::PathBuf> {
    let mut compiler = cc::Build::new().cpp(true).get_compiler().to_command();
    let output = compiler.arg("-print-file-name=libstdc++.a").output().ok()?;
    // A compiler without that library prints the bare name.
    let file = std::path::PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    file.is_absolute()
        .then(|| file.parent().map(std::path::Path::to_owned))?
}

/// Compresses the page of reports: its HTML, its style and its scripts, with a zero byte between them. Compressed, it takes a
/// quarter of the space in the library.
fn compress_page() {
    use std::io::Write;
    let folder = std::path::Path::new("src/history/report/page");
    let parts: [&[&str]; 3] = [
        &["page.html"],
        &["page.css"],
        &[
            "data.js",
            "moment.js",
            "view.js",
            "timeline.js",
            "map.js",
            "holders.js",
            "space.js",
            "search.js",
            "app.js",
        ],
    ];
    let out = std::path::Path::new(&std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("page.deflate");
    let file = std::fs::File::create(out).expect("OUT_DIR is writable");
    let mut packed = flate2::write::DeflateEncoder::new(file, flate2::Compression::best());
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            packed.write_all(&[0]).expect("page.deflate is writable");
        }
        for name in *part {
            let path = folder.join(name);
            println!("cargo:rerun-if-changed={}", path.display());
            let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            packed.write_all(&text).expect("page.deflate is writable");
        }
    }
    packed.finish().expect("page.deflate is writable");
}
