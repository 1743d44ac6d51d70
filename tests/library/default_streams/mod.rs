//! The default stream at the library's doors: who says "null", and which stream it means there. docs/c-cpp.md has the table.

use std::process::Command;

use crate::common::{self, cudasim, simcuda};

/// The program over one driver, linked in both orders: a linker keeps the first of two functions of one name.
fn headers_over(name: &str, driver: impl Fn(&mut Command)) {
    let dir = common::scratch(name);
    let source = common::root().join("tests/library/default_streams");
    let objects = [
        ("main", "main.cpp", None),
        (
            "per_thread",
            "doors.cpp",
            Some("-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1"),
        ),
        ("legacy", "doors.cpp", None),
    ];
    let [main, per_thread, legacy] = objects.map(|(object, file, macros)| {
        let object = dir.join(object).with_extension("o");
        let mut compile = common::cxx();
        // Without optimization, inline functions stay functions that the linker can confuse.
        compile.args(["-O0", "-pthread", "-c"]).args(macros);
        compile.arg("-I").arg(&source).arg(source.join(file));
        common::run(compile.arg("-o").arg(&object));
        object
    });
    for (order, objects) in [
        ("one", [&main, &per_thread, &legacy]),
        ("other", [&legacy, &per_thread, &main]),
    ] {
        let mut link = common::cxx();
        link.args(objects).args(["-pthread", "-ldl", "-o"]).arg(dir.join(order));
        common::link(&mut link, &dir);
        common::run(&mut link);
        let mut program = Command::new(dir.join(order));
        program.env("TRTALLOC_DRIVER", "cuda");
        driver(&mut program);
        common::run(&mut program);
    }
}

#[test]
fn headers_mean_the_programs_default_stream() {
    headers_over("simcuda", |program| {
        let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
        program.env("LD_LIBRARY_PATH", folder);
    });
}

#[test]
fn headers_mean_the_programs_default_stream_over_cudasim() {
    headers_over("cudasim", |program| cudasim::environment(program, 12_090, 1, 1 << 30));
}
