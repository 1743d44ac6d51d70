//! TensorRT 10, 11 and RTX: the adapter, called through NVIDIA's own headers.

use std::process::Command;
use std::sync::OnceLock;

use crate::common;
pub use crate::nvidia::*;
use crate::table::{self, Outcome, Row};

/// How the interface is laid out in what `include` finds, as tests/compatibility/layout.cpp prints it.
fn layout(name: &str, include: impl FnOnce(&mut Command) -> Result<(), Outcome>) -> Result<String, Outcome> {
    let dir = common::scratch(&format!("compat_layout_{name}"));
    let mut compile = common::cxx();
    include(&mut compile)?;
    compile
        .arg(common::root().join("tests/compatibility/layout.cpp"))
        .arg("-o")
        .arg(dir.join("layout"));
    common::run(&mut compile);
    let output = common::run(&mut Command::new(dir.join("layout")));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        let [ours, rtx] = ["OURS", "RTX"].map(|shape| {
            let ours = layout(shape, |compile| {
                compile.arg("-DOURS").arg(format!("-D{shape}=1"));
                Ok(())
            });
            ours.expect("nothing is fetched for our own")
        });
        for headers in all() {
            let (name, with) = (headers.name, "NVIDIA's header");
            let is_rtx = name.starts_with("RTX");
            let ours = if is_rtx { &rtx } else { &ours };
            let id = format!("{}_{}", headers.crate_version, name.replace(' ', "_"));
            let row = |what, body: &dyn Fn() -> Result<(), Outcome>| {
                Row::of(name, "C++", with, what, || {
                    body().map_or_else(|outcome| outcome, |()| Outcome::Passed)
                })
            };
            let same = match is_rtx {
                true => "slots, signatures and sizes are those of cpp/tensorrt10.h and cpp/output_rtx.h",
                false => "slots, signatures and sizes are those of cpp/tensorrt10.h and cpp/output10.h",
            };
            rows.push(row(same, &|| {
                let theirs = layout(&id, |compile| {
                    compile.args(is_rtx.then_some("-DRTX"));
                    headers.include(compile)
                })?;
                assert_eq!(theirs, *ours);
                Ok(())
            }));
            rows.push(row(
                "every method through IGpuAllocator*, type information, memory, threads",
                &|| methods(headers, &id),
            ));
            rows.push(row(
                "outputs that grow through IOutputAllocator*, scratch memory that contexts share, whether contexts fit",
                &|| outputs(&id, |compile| headers.include(compile)),
            ));
        }
        rows
    })
}

/// tests/compatibility/output.cpp, compiled with what `include` finds.
pub fn outputs(id: &str, include: impl FnOnce(&mut Command) -> Result<(), Outcome>) -> Result<(), Outcome> {
    let dir = common::scratch(&format!("compat_output_{id}"));
    let mut compile = common::cxx();
    include(&mut compile)?;
    compile.args(["-pthread", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]);
    compile
        .arg(common::root().join("tests/compatibility/output.cpp"))
        .arg("-o")
        .arg(dir.join("output"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let output = common::run(&mut table::program(&dir.join("output")));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    Ok(())
}

fn methods(headers: &Headers, id: &str) -> Result<(), Outcome> {
    let dir = common::scratch(&format!("compat_{id}"));
    let mut compile = common::cxx();
    headers.include(&mut compile)?;
    compile.args(["-pthread", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]);
    compile
        .arg(common::root().join("tests/compatibility/adapter.cpp"))
        .arg("-o")
        .arg(dir.join("adapter"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    for what in ["interface", "memory"] {
        let output = common::run(table::program(&dir.join("adapter")).arg(what));
        // The one line is the program's own: the library writes nothing there.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    Ok(())
}

#[test]
fn ten_and_later() {
    table::check(rows());
}

/// tensorrt.hpp does not compile with a TensorRT it does not know, and says so.
#[test]
fn an_unknown_tensorrt_does_not_compile() {
    let compile = |major: &str, minor: &str| {
        let dir = common::scratch(&format!("compat_unknown_{major}"));
        std::fs::write(
            dir.join("unknown.cpp"),
            "#include <trtalloc/tensorrt.hpp>\nint main() {}\n",
        )
        .unwrap();
        let mut compile = common::cxx();
        compile
            .arg(format!("-DEIGHT_MAJOR={major}"))
            .arg(format!("-DEIGHT_MINOR={minor}"))
            .arg("-DEIGHT_PATCH=0");
        compile
            .arg("-I")
            .arg(common::root().join("tests/support/tensorrt/eight"));
        compile
            .arg("-fsyntax-only")
            .arg(dir.join("unknown.cpp"))
            .output()
            .unwrap()
    };
    assert!(compile("8", "6").status.success());
    // The header of our own computes 7.2 as 7200, and 25.0 as 25000: neither is a version of a known TensorRT.
    for (major, minor) in [("7", "2"), ("25", "0"), ("130", "0")] {
        let output = compile(major, minor);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "TensorRT {major}.{minor} was accepted");
        assert!(stderr.contains("this trtalloc does not know this TensorRT"), "{stderr}");
    }
    // A known version with a newer interface under the same name.
    let dir = common::scratch("compat_newer");
    let header = "#include <cstdint>\n#define NV_TENSORRT_MAJOR 11\n#define NV_TENSORRT_VERSION 119900\n\
                  namespace nvinfer1 { namespace v_1_0 { class IGpuAllocator; } namespace v_2_0 {\n\
                  class IGpuAllocator { public: virtual void* allocate(std::uint64_t) = 0; }; }\n\
                  using IGpuAllocator = v_2_0::IGpuAllocator; }\n";
    std::fs::write(dir.join("NvInferRuntime.h"), header).unwrap();
    std::fs::write(
        dir.join("newer.cpp"),
        "#include <trtalloc/tensorrt.hpp>\nint main() {}\n",
    )
    .unwrap();
    let mut compile = common::cxx();
    let output = compile
        .arg("-I")
        .arg(&dir)
        .arg("-fsyntax-only")
        .arg(dir.join("newer.cpp"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("newer IGpuAllocator than this trtalloc knows"),
        "{stderr}"
    );
}

/// The C++ headers may be included twice and from two units of one program.
#[test]
fn two_units_of_one_program() {
    let dir = common::scratch("compat_two_units");
    let include =
        "#include <trtalloc/tensorrt.hpp>\n#include <trtalloc/tensorrt.hpp>\n#include <trtalloc/trtalloc.hpp>\n";
    let other = "nvinfer1::IGpuAllocator* other();\n\
                 nvinfer1::IGpuAllocator* other() { return trtalloc::tensorrt(trtalloc_default()); }\n";
    let main = "nvinfer1::IGpuAllocator* other();\n\
                int main() { return other() == trtalloc::tensorrt(trtalloc_default()) ? 0 : 1; }\n";
    std::fs::write(dir.join("other.cpp"), format!("{include}{other}")).unwrap();
    std::fs::write(dir.join("main.cpp"), format!("{include}{main}")).unwrap();
    let mut compile = common::cxx();
    compile.args(["-DEIGHT_MAJOR=8", "-DEIGHT_MINOR=6", "-DEIGHT_PATCH=1", "-I"]);
    compile.arg(common::root().join("tests/support/tensorrt/eight"));
    compile.args([dir.join("other.cpp"), dir.join("main.cpp")]);
    compile.arg("-o").arg(dir.join("program"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    common::run(&mut table::program(&dir.join("program")));
}

/// The headers raise none of the warnings that careful programs have on, in any standard that they are for, and take macros named
/// min and max as older CUDA code and Windows' headers define them.
#[test]
fn no_header_raises_a_warning() {
    let dir = common::scratch("compat_warnings");
    let check = |mut compile: Command, file: &str, text: &str, standard: &str| {
        std::fs::write(dir.join(file), text).unwrap();
        compile.args([
            "-Wconversion",
            "-Wsign-conversion",
            "-Wshadow",
            "-Wcast-qual",
            "-Wundef",
        ]);
        compile.arg(standard).arg("-fsyntax-only").arg(dir.join(file));
        common::run(&mut compile);
    };
    let c = "#include <trtalloc/hooks.h>\n#include <trtalloc/trtalloc.h>\n#include <trtalloc/trtalloc.h>\n\
             int main(void) { return trtalloc_last_status() == TRTALLOC_STATUS_OK ? 0 : 1; }\n";
    for standard in ["-std=c99", "-std=c11", "-std=c17", "-std=c2x"] {
        check(common::cc(), "all.c", c, standard);
    }
    // libstdc++'s own headers undefine them.
    let cpp = "#include <algorithm>\n#include <mutex>\n#include <optional>\n#include <string>\n\
               #define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) > (b) ? (a) : (b))\n\
               #include <trtalloc/tensorrt.hpp>\n\
               struct Engine {\n    std::int64_t getDeviceMemorySizeV2() const { return 1; }\n\
               std::int64_t getStreamableWeightsSize() const { return 1; }\n\
               std::int64_t getWeightStreamingBudgetV2() const { return 1; }\n};\n\
               struct Context {\n    std::size_t updateDeviceMemorySizeForShapes() { return 1; }\n\
               void setDeviceMemoryV2(void*, std::int64_t) {}\n};\n\
               int main() {\n    trtalloc::Allocator memory{\"driver=sim\"};\n    Context context;\n\
               trtalloc::SharedScratch scratch{memory};\n    auto const lease = scratch.lend(context, nullptr);\n\
               return trtalloc::fit(Engine{}, memory, 2).weight_streaming_budget() ? 0 : 1;\n}\n";
    for standard in ["-std=c++17", "-std=c++20", "-std=c++2b"] {
        let mut compile = common::cxx();
        compile.args([
            "-Wold-style-cast",
            "-Wnon-virtual-dtor",
            "-Woverloaded-virtual",
            "-fno-rtti",
        ]);
        compile.args(["-DEIGHT_MAJOR=8", "-DEIGHT_MINOR=6", "-DEIGHT_PATCH=1", "-isystem"]);
        compile.arg(common::root().join("tests/support/tensorrt/eight"));
        check(compile, "all.cpp", cpp, standard);
    }
}
