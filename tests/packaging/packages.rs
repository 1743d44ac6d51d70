//! The packages that `.ci/packages` builds: installed on bare systems and in fresh environments, used, and removed without a
//! trace; what they need of glibc; and one version number everywhere. TRTALLOC_TEST_PACKAGES names the folder with them.
//!
//! Bare systems come from Debian's archive by `debootstrap`, and stay in the build's folder: Debian 12, and the unpacked packages
//! of Debian 11, whose glibc 2.31 is that of Ubuntu 20.04.

use crate::common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const LIBRARY: &str = concat!("libtrtalloc.so.", env!("CARGO_PKG_VERSION"));
/// The newest glibc that the packages may need.
const GLIBC: (u32, u32) = (2, 28);

/// A machine as cargo and Debian name it.
struct Machine {
    name: &'static str,
    debian: &'static str,
}

const X86_64: Machine = Machine {
    name: "x86_64",
    debian: "amd64",
};
const AARCH64: Machine = Machine {
    name: "aarch64",
    debian: "arm64",
};

impl Machine {
    fn is_here(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    fn deb(&self) -> PathBuf {
        package(&format!("trtalloc_{VERSION}_{}.deb", self.debian))
    }

    fn wheel(&self) -> PathBuf {
        let (major, minor) = GLIBC;
        package(&format!(
            "trtalloc-{VERSION}-py3-none-manylinux_{major}_{minor}_{}.whl",
            self.name
        ))
    }

    fn library_folder(&self) -> String {
        format!("usr/lib/{}-linux-gnu", self.name)
    }

    /// Runs a program of this machine with the libraries under `root`: directly where it is this one, else by an emulator.
    fn program(&self, root: &Path, program: &Path) -> Command {
        let mut command = match self.is_here() {
            // By the loader's own file: links in the system have paths from its root.
            true => Command::new(root.join(format!("lib/{}-linux-gnu/ld-2.31.so", self.name))),
            false => {
                let emulator = format!("qemu-{}-static", self.name);
                there("qemu", &emulator);
                let mut command = Command::new(emulator);
                command.arg("-L").arg(root);
                command
            }
        };
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
            command.env_remove(key);
        }
        if self.is_here() {
            let folder = format!("{}-linux-gnu", self.name);
            let folders = [root.join("lib").join(&folder), root.join("usr/lib").join(&folder)];
            let folders = folders.map(|folder| folder.display().to_string()).join(":");
            command.arg("--library-path").arg(folders);
        }
        command.arg(program);
        command
    }
}

/// A package by its file's name.
fn package(name: &str) -> PathBuf {
    let Some(folder) = std::env::var_os("TRTALLOC_TEST_PACKAGES") else {
        common::skip(
            "packages",
            "TRTALLOC_TEST_PACKAGES is not set; .ci/packages builds and tests them",
        );
    };
    let path = Path::new(&folder).join(name);
    if !path.exists() {
        common::skip("packages", &format!("no {name} in TRTALLOC_TEST_PACKAGES"));
    }
    path
}

/// Ends the test where a program is missing.
fn there(what: &'static str, program: &str) {
    if Command::new(program).arg("--version").output().is_err() {
        common::skip(what, &format!("no {program}"));
    }
}

fn text_of(command: &mut Command) -> String {
    String::from_utf8(common::run(command).stdout).unwrap()
}

/// The package unpacked in a fresh folder.
fn unpacked_deb(machine: &Machine, name: &str) -> PathBuf {
    let deb = machine.deb();
    there("dpkg", "dpkg-deb");
    let folder = common::scratch(name);
    common::run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&folder));
    folder
}

fn unpacked_wheel(machine: &Machine, name: &str) -> PathBuf {
    let wheel = machine.wheel();
    let folder = common::scratch(name);
    let mut unpack = Command::new("python3");
    common::run(unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder));
    folder
}

/// Every file, link and folder under `root`, apart from what the system itself writes: its log, its list of packages, its cache.
fn paths(root: &Path) -> BTreeSet<PathBuf> {
    fn walk(folder: &Path, root: &Path, into: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(root).unwrap();
            let own = ["proc", "dev", "sys", "var/log", "var/cache", "var/lib/dpkg/updates"];
            let lists = ["status", "status-old", "lock", "lock-frontend", "available", "triggers"];
            let is_list =
                inside.parent() == Some(Path::new("var/lib/dpkg")) && lists.iter().any(|name| inside.ends_with(name));
            if own.iter().any(|own| inside.starts_with(own)) || is_list {
                continue;
            }
            into.insert(inside.to_owned());
            if path.is_dir() && !path.is_symlink() {
                walk(&path, root, into);
            }
        }
    }
    let mut all = BTreeSet::new();
    walk(root, root, &mut all);
    all
}

/// What is in `after` and not in `before`, and the reverse.
fn difference(before: &BTreeSet<PathBuf>, after: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    before.symmetric_difference(after).cloned().collect()
}

/// A system of that suite of Debian, fetched where it is not there yet; `unpacked`: its packages are not set up, and Python's
/// are fetched, too.
fn system(suite: &str, machine: &Machine, unpacked: bool) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    there("debootstrap", "debootstrap");
    // SAFETY: the function has no conditions.
    if unsafe { libc::getuid() } != 0 {
        common::skip("debootstrap", "only root can make a system");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("systems");
    let kind = if unpacked { "-python" } else { "" };
    let name = format!("{suite}-{}{kind}", machine.debian);
    let root = folder.join(&name);
    if root.exists() {
        return root;
    }
    if let Err(reason) = common::may_download() {
        common::skip("debootstrap", &reason);
    }
    std::fs::create_dir_all(&folder).unwrap();
    let partial = folder.join(format!("{name}.partial"));
    let _ = std::fs::remove_dir_all(&partial);
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--arch", machine.debian]);
    if unpacked {
        make.args(["--foreign", "--include=python3-venv"]);
    }
    make.arg(suite).arg(&partial).arg("http://deb.debian.org/debian");
    common::run(&mut make);
    std::fs::rename(&partial, &root).unwrap();
    root
}

/// A copy of a system, for a test that changes it.
fn copy(system: &Path, name: &str) -> PathBuf {
    let root = common::scratch(name).join("root");
    common::run(Command::new("cp").arg("-a").arg(system).arg(&root));
    root
}

/// Runs a shell's line in a system, with nothing of this process's environment.
fn inside(root: &Path, line: &str) -> String {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "sh", "-c"]);
    command.arg("mount -t proc proc \"$1\"/proc && exec chroot \"$1\" sh -ec \"$2\"");
    command.arg("sh").arg(root).arg(line);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("LC_ALL", "C").env("HOME", "/root");
    text_of(&mut command)
}

/// A C program against the headers and the library under `root`, which finds them by pkg-config.
fn c_program(machine: &Machine, root: &Path, to: &Path) {
    let compiler = match machine.is_here() {
        true => "cc".to_owned(),
        false => format!("{}-linux-gnu-gcc", machine.name),
    };
    there("cc", &compiler);
    there("pkg-config", "pkg-config");
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "trtalloc"]).env(
        "PKG_CONFIG_LIBDIR",
        root.join(machine.library_folder()).join("pkgconfig"),
    );
    let flags = text_of(&mut ask);
    let mut compile = Command::new(compiler);
    compile.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
    compile.arg(common::root().join("examples/c/main.c"));
    common::run(compile.args(flags.split_whitespace()).arg("-o").arg(to));
}

#[test]
fn the_deb_installs_on_a_bare_system_works_and_is_removed() {
    let deb = X86_64.deb();
    if !X86_64.is_here() {
        common::unsupported("this machine is not an x86-64");
    }
    let root = copy(&system("bookworm", &X86_64, false), "deb");
    let before = paths(&root);
    std::fs::copy(&deb, root.join("trtalloc.deb")).unwrap();
    inside(&root, "dpkg -i trtalloc.deb && rm trtalloc.deb");
    let installed = paths(&root);
    let names = [
        "usr/bin/trtalloc",
        "usr/include/trtalloc/trtalloc.h",
        "usr/include/trtalloc/tensorrt.hpp",
        "usr/lib/x86_64-linux-gnu/libtrtalloc.so",
        concat!("usr/lib/x86_64-linux-gnu/", env!("TRTALLOC_SONAME")),
        "usr/lib/x86_64-linux-gnu/pkgconfig/trtalloc.pc",
        "usr/lib/x86_64-linux-gnu/cmake/trtalloc/trtallocConfig.cmake",
        "usr/share/man/man1/trtalloc.1",
        "usr/share/man/man1/trtalloc-run.1",
        "usr/share/bash-completion/completions/trtalloc",
        "usr/share/zsh/vendor-completions/_trtalloc",
        "usr/share/fish/vendor_completions.d/trtalloc.fish",
        "usr/share/doc/trtalloc/copyright",
    ];
    for name in names {
        assert!(installed.contains(Path::new(name)), "no {name}");
    }

    let said = inside(
        &root,
        "trtalloc --version; cd /tmp; trtalloc demo --short --driver sim --snapshot /tmp/demo.pickle; trtalloc report demo.pickle; \
         trtalloc run --limit 1GiB -- true; rm demo.pickle; \
         bash -ec '. /usr/share/bash-completion/completions/trtalloc; complete -p trtalloc'",
    );
    assert!(
        said.contains(VERSION) && said.contains("snapshot") && said.contains("-F _trtalloc trtalloc"),
        "{said}"
    );
    let program = root.join("tmp/pool");
    c_program(&X86_64, &root, &program);
    // It finds the library by the loader's cache, which the package's installation wrote.
    let said = inside(&root, "/tmp/pool driver=sim && rm /tmp/pool");
    assert!(said.contains("reused at once: yes"), "{said}");
    there("cmake", "cmake");
    let build = common::scratch("deb_consumer");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(common::root().join("tests/support/consumer"));
    configure
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", root.join("usr").display()));
    common::run(configure.arg(format!("-DWANTED_VERSION={VERSION}")));
    common::run(Command::new("cmake").arg("--build").arg(&build));
    common::run(Command::new("ctest").arg("--output-on-failure").current_dir(&build));

    inside(&root, "dpkg --purge trtalloc");
    assert_eq!(difference(&before, &paths(&root)), Vec::<PathBuf>::new());
    let cache = inside(&root, "ldconfig -p; dpkg -l");
    assert!(!cache.contains("trtalloc"), "{cache}");
}

/// The library and the command with the glibc of Ubuntu 20.04.
fn runs_with_glibc_2_31(machine: &Machine) {
    let package = unpacked_deb(machine, &format!("old_{}", machine.name));
    let root = system("bullseye", machine, true);
    // What the package's library and command find, and nothing newer of this machine.
    let libc = root.join(format!("lib/{}-linux-gnu/libc-2.31.so", machine.name));
    assert!(libc.exists(), "no {}", libc.display());
    let command = package.join("usr/bin/trtalloc");
    let library = package.join(machine.library_folder()).join(LIBRARY);
    let folder = common::scratch(&format!("old_run_{}", machine.name));
    let mut demo = machine.program(&root, &command);
    demo.args(["demo", "--short", "--driver", "sim", "--snapshot", "demo.pickle"]);
    let said = text_of(demo.current_dir(&folder));
    assert!(said.contains("snapshot"), "{said}");
    // A program without threads, and one that opens libraries and starts threads.
    for program in ["bin/true", "usr/bin/perl"] {
        let mut preloaded = machine.program(&root, &root.join(program));
        match machine.is_here() {
            true => preloaded.env("LD_PRELOAD", &library),
            false => preloaded.env("QEMU_SET_ENV", format!("LD_PRELOAD={}", library.display())),
        };
        if program.ends_with("perl") {
            preloaded.args(["-e", "open(M, '/proc/self/maps'); print grep /libtrtalloc/, <M>"]);
        }
        let output = common::run(&mut preloaded);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!errors.contains("cannot be preloaded"), "{errors}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!program.ends_with("perl") || said.contains(LIBRARY), "{said}");
    }
}

#[test]
fn x86_64_runs_with_glibc_2_31() {
    runs_with_glibc_2_31(&X86_64);
}

#[test]
fn aarch64_runs_with_glibc_2_31() {
    runs_with_glibc_2_31(&AARCH64);
}

/// A C program for the other machine, built and run against what is in the package.
#[test]
fn the_aarch64_library_is_linked_and_called() {
    let package = unpacked_deb(&AARCH64, "aarch64");
    if AARCH64.is_here() {
        common::unsupported("this machine is an aarch64");
    }
    let program = package.join("pool");
    c_program(&AARCH64, &package, &program);
    let mut run = AARCH64.program(Path::new("/usr/aarch64-linux-gnu"), &program);
    let folder = package.join(AARCH64.library_folder());
    run.arg("driver=sim")
        .env("QEMU_SET_ENV", format!("LD_LIBRARY_PATH={}", folder.display()));
    let said = text_of(&mut run);
    assert!(said.contains("reused at once: yes"), "{said}");
}

/// Installs a wheel in a fresh environment, whose Python `python` runs, uses it, and removes it.
fn wheel_works(wheel: &Path, environment: &Path, python: impl Fn(&[&str]) -> String) {
    let pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"];
    let before = paths(environment);
    let install = ["install", "--no-index", "--no-compile", wheel.to_str().unwrap()];
    python(&[&pip[..], &install].concat());
    let program = "import os; os.environ.update(TRTALLOC_DRIVER='sim', TRTALLOC_SIM_MEMORY='4GiB')\n\
        import trtalloc\n\
        block = trtalloc.allocate(1 << 20, 0)\n\
        print(trtalloc.__version__, trtalloc.stats()['allocated'])";
    assert_eq!(python(&["-c", program]).trim(), format!("{VERSION} {}", 1 << 20));
    assert!(python(&["-m", "pip", "show", "trtalloc"]).contains(&format!("Version: {VERSION}\n")));
    python(&[&pip[..], &["uninstall", "--yes", "trtalloc"]].concat());
    assert_eq!(difference(&before, &paths(environment)), Vec::<PathBuf>::new());
}

#[test]
fn the_wheel_installs_works_and_is_removed() {
    let wheel = X86_64.wheel();
    if !X86_64.is_here() {
        common::unsupported("this machine is not an x86-64");
    }
    let dir = common::scratch("wheel").join("environment");
    let output = Command::new("python3").args(["-m", "venv"]).arg(&dir).output();
    if !output.is_ok_and(|output| output.status.success()) {
        common::skip("python", "no python3 -m venv");
    }
    wheel_works(&wheel, &dir, |arguments| {
        let mut command = Command::new(dir.join("bin/python"));
        command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        text_of(command.current_dir(dir.parent().unwrap()))
    });
}

/// In Python 3.9, the oldest that the package is for, with the glibc of Ubuntu 20.04. The emulator runs single programs, so pip
/// is not installed in the environment.
#[test]
fn the_aarch64_wheel_installs_works_and_is_removed() {
    let wheel = AARCH64.wheel();
    if AARCH64.is_here() {
        common::unsupported("this machine is an aarch64");
    }
    let root = system("bullseye", &AARCH64, true);
    let folder = common::scratch("wheel_aarch64");
    let own = folder.join("system");
    std::fs::create_dir(&own).unwrap();
    let files = |folder: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    for package in files(root.join("var/cache/apt/archives").to_str().unwrap()) {
        let name = package.file_name().unwrap().to_str().unwrap();
        let kinds = ["python", "libpython3", "libexpat1_", "libffi7_", "libssl1.1_"];
        if kinds.iter().any(|kind| name.starts_with(kind)) {
            common::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&own));
        }
    }
    let wheels = files(own.join("usr/share/python-wheels").to_str().unwrap());
    let wheels = std::env::join_paths(wheels).unwrap();
    let libraries = ["lib", "usr/lib"].map(|lib| format!("{}/{lib}/aarch64-linux-gnu", own.display()));
    let python = |program: &Path, arguments: &[&str]| {
        let mut command = AARCH64.program(&root, program);
        command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHONPATH", &wheels);
        command.env("QEMU_SET_ENV", format!("LD_LIBRARY_PATH={}", libraries.join(":")));
        text_of(command.current_dir(&folder))
    };
    let machine = "import platform; print(platform.machine(), *platform.libc_ver())";
    let installed = own.join("usr/bin/python3.9");
    assert_eq!(python(&installed, &["-c", machine]).trim(), "aarch64 glibc 2.31");
    python(&installed, &["-m", "venv", "--without-pip", "environment"]);
    let dir = folder.join("environment");
    wheel_works(&wheel, &dir, |arguments| python(&dir.join("bin/python"), arguments));
}

/// The newest version of glibc that a file names.
fn newest_glibc(file: &Path) -> (u32, u32) {
    there("binutils", "readelf");
    let text = text_of(Command::new("readelf").args(["-VdW"]).arg(file));
    // The loader applies these from glibc 2.36 on, and an older one leaves them out.
    assert!(
        !text.contains("(RELR)") && !text.contains("GLIBC_ABI"),
        "{}: {text}",
        file.display()
    );
    let versions = text.split("Name: GLIBC_").skip(1).map(|rest| {
        let mut numbers = rest.split_whitespace().next().unwrap().split('.').map(str::parse);
        (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap())
    });
    versions.max().expect("it names glibc")
}

#[test]
fn packages_need_glibc_2_28_at_most() {
    for machine in [&X86_64, &AARCH64] {
        let deb = unpacked_deb(machine, &format!("deb_{}", machine.name));
        let wheel = unpacked_wheel(machine, &format!("wheel_{}", machine.name));
        let library = deb.join(machine.library_folder()).join(LIBRARY);
        for file in [&library, &deb.join("usr/bin/trtalloc")] {
            assert!(
                newest_glibc(file) <= GLIBC,
                "{}: {:?}",
                file.display(),
                newest_glibc(file)
            );
        }
        let same = std::fs::read(&library).unwrap() == std::fs::read(wheel.join("trtalloc/libtrtalloc.so")).unwrap();
        assert!(same, "{}: the wheel has another library than the .deb", machine.name);
    }
}

/// Whole-program optimization leaves cxx's own functions outside of archives, whose names the linker hides; cpp/cxx_names.c does.
#[test]
fn the_library_exports_its_own_names_only() {
    there("binutils", "nm");
    for machine in [&X86_64, &AARCH64] {
        let deb = unpacked_deb(machine, &format!("exports_{}", machine.name));
        let library = deb.join(machine.library_folder()).join(LIBRARY);
        let text = text_of(
            Command::new("nm")
                .args(["-D", "--defined-only", "--format=posix"])
                .arg(&library),
        );
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        let tensorrt = ["dlsym", "createLeanRuntime"];
        let surplus: Vec<&str> = names
            .filter(|name| !(name.starts_with("trtalloc_") || name.ends_with("_INTERNAL") || tensorrt.contains(name)))
            .collect();
        assert!(surplus.is_empty(), "{}: {surplus:?}", library.display());
    }
}

/// What runs in every program that preloads the library: Rust keeps the arguments, and the compiler has a function of its own; on
/// aarch64 two more look which instructions there are. The C++ runtime's locales and its memory for exceptions are not in the library.
#[test]
fn nothing_of_the_cpp_runtime_runs_when_the_library_is_loaded() {
    there("binutils", "readelf");
    for (machine, functions) in [(&X86_64, 2), (&AARCH64, 4)] {
        let deb = unpacked_deb(machine, &format!("start_{}", machine.name));
        let library = deb.join(machine.library_folder()).join(LIBRARY);
        let text = text_of(Command::new("readelf").arg("-dW").arg(&library));
        let size = text.lines().find(|line| line.contains("(INIT_ARRAYSZ)"));
        let expected = format!(" {} (bytes)", functions * 8);
        assert!(
            size.is_some_and(|line| line.ends_with(&expected)),
            "{}: {text}",
            library.display()
        );
    }
}

#[test]
fn sources_have_one_version() {
    let read = |path: &str| std::fs::read_to_string(common::root().join(path)).unwrap();
    let has = |path: &str, line: &str| assert!(read(path).lines().any(|there| there == line), "{path}: no {line:?}");
    has("Cargo.toml", &format!("version = \"{VERSION}\""));
    has("python/trtalloc/_library.py", &format!("VERSION = \"{VERSION}\""));
    has(
        "cmake/man/trtalloc.1",
        &format!(".TH trtalloc 1  \"trtalloc {VERSION}\""),
    );
    for page in ["README.md", "docs/packages.md"] {
        let text = read(page);
        for name in ["trtalloc_", "trtalloc-"] {
            let ends = text.match_indices(name).map(|(at, _)| &text[at + name.len()..]);
            let mut numbered = ends
                .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                .peekable();
            assert!(numbered.peek().is_some(), "{page} names no {name}VERSION");
            numbered.for_each(|rest| assert!(rest.starts_with(VERSION), "{page}: {name}{:.20}", rest));
        }
    }
    // A released version's section has its date, and what comes next is above.
    let changes = read("CHANGELOG.md");
    let mut sections = changes.lines().filter_map(|line| line.strip_prefix("## ["));
    let newest = sections.find(|section| !section.starts_with("Unreleased]"));
    assert!(
        newest.is_some_and(|section| section.starts_with(&format!("{VERSION}] - 20"))),
        "CHANGELOG.md: {newest:?}"
    );
    // CMake reads it in Cargo.toml, and build.rs compares the soname.
    let said = text_of(Command::new(env!("CARGO_BIN_EXE_trtalloc")).arg("--version"));
    assert_eq!(said.trim(), format!("trtalloc {VERSION}"));
}

#[test]
fn packages_have_one_version() {
    for machine in [&X86_64, &AARCH64] {
        let folder = unpacked_deb(machine, &format!("version_{}", machine.name));
        let mut field = Command::new("dpkg-deb");
        let field = text_of(field.arg("-f").arg(machine.deb()).args(["Version", "Architecture"]));
        assert_eq!(field, format!("Version: {VERSION}\nArchitecture: {}\n", machine.debian));
        let libraries = folder.join(machine.library_folder());
        let read = |path: &str| std::fs::read_to_string(libraries.join(path)).unwrap();
        let versions = [
            ("pkgconfig/trtalloc.pc", format!("Version: {VERSION}\n")),
            (
                "cmake/trtalloc/trtallocConfigVersion.cmake",
                format!("set(PACKAGE_VERSION \"{VERSION}\")"),
            ),
            ("cmake/trtalloc/trtallocConfig.cmake", format!("/{LIBRARY}\"")),
        ];
        for (path, text) in versions {
            assert!(read(path).contains(&text), "{path}: {}", read(path));
        }
        let soname = text_of(Command::new("readelf").arg("-d").arg(libraries.join(LIBRARY)));
        assert!(
            soname.contains(concat!("soname: [", env!("TRTALLOC_SONAME"), "]")),
            "{soname}"
        );
        let wheel = unpacked_wheel(machine, &format!("wheel_version_{}", machine.name));
        let metadata = wheel.join(format!("trtalloc-{VERSION}.dist-info/METADATA"));
        let metadata = std::fs::read_to_string(metadata).unwrap();
        assert!(metadata.contains(&format!("\nVersion: {VERSION}\n")), "{metadata}");
    }
    let packed = package(&format!("trtalloc-{VERSION}.crate"));
    let list = text_of(Command::new("tar").arg("-tzf").arg(packed));
    for name in [
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "build.rs",
        "src/lib.rs",
        "cpp/glibc.c",
    ] {
        let path = format!("trtalloc-{VERSION}/{name}");
        assert!(list.lines().any(|line| line == path), "no {path}");
    }
}
