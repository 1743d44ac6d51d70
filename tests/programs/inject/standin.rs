//! A stand-in for each TensorRT, and programs that use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};

use crate::common;
use crate::inject::headers;
use crate::inject::table::{self, Outcome};

/// A TensorRT with a stand-in.
pub struct Version {
    /// Its name in the table.
    pub name: &'static str,
    /// NVIDIA's name of the library.
    pub soname: &'static str,
    /// Major, minor and patch version, where this project declares the classes.
    own: Option<[u32; 3]>,
    built: OnceLock<Result<Built, Outcome>>,
}

impl Version {
    const fn new(name: &'static str, soname: &'static str, own: Option<[u32; 3]>) -> Version {
        Version {
            name,
            soname,
            own,
            built: OnceLock::new(),
        }
    }
}

/// The oldest and the newest version of each layout.
pub static VERSIONS: [Version; 7] = [
    Version::new("8.6", "libnvinfer.so.8", Some([8, 6, 1])),
    Version::new("9.3", "libnvinfer.so.9", Some([9, 3, 0])),
    Version::new("10.16", "libnvinfer.so.10", None),
    Version::new("11.0", "libnvinfer.so.11", None),
    Version::new("11.4", "libnvinfer.so.11", None),
    Version::new("RTX 1.3", "libtensorrt_rtx.so.1", None),
    Version::new("RTX 1.7", "libtensorrt_rtx.so.1", None),
];

/// The files that are compiled once for each TensorRT.
pub struct Built {
    /// A folder for this TensorRT, with the library.
    pub dir: PathBuf,
    /// The library.
    pub library: PathBuf,
    /// The library's object file, for a program that has it linked in.
    archive: PathBuf,
    /// tests/programs/inject/client.cpp
    pub client: PathBuf,
    /// The same client, which looks up TensorRT's functions itself.
    pub looks_up: PathBuf,
}

/// The folder of the sources.
pub fn sources() -> PathBuf {
    common::root().join("tests/programs/inject")
}

/// Held while a program is linked.
static LINKING: Mutex<()> = Mutex::new(());

impl Version {
    /// Adds the include paths of its headers.
    pub fn include(&self, compile: &mut Command) -> Result<(), Outcome> {
        match self.own {
            Some(parts) => {
                for (name, part) in ["MAJOR", "MINOR", "PATCH"].iter().zip(parts) {
                    compile.arg(format!("-DEIGHT_{name}={part}"));
                }
                compile.arg("-I").arg(sources().join("eight"));
                compile
                    .arg("-I")
                    .arg(common::root().join("tests/support/tensorrt/eight"));
                Ok(())
            }
            None => headers::of(self.name).include(compile),
        }
    }

    /// Compiles a source of this folder to `to`, with additional arguments.
    fn compile(&self, source: &str, to: &Path, arguments: &[&str]) -> Result<(), Outcome> {
        let mut compile = common::cxx();
        self.include(&mut compile)?;
        compile.args(["-g", "-fPIC", "-fvisibility=hidden", "-pthread"]);
        compile.arg(sources().join(source)).args(arguments);
        common::run(compile.arg("-o").arg(to));
        Ok(())
    }

    /// Builds its stand-in under `soname`.
    pub fn library(&self, soname: &str, to: &Path) -> Result<(), Outcome> {
        let name = format!("-Wl,-soname,{soname}");
        self.library_with(soname, to, &[&name])
    }

    /// The same library, whose soname comes only from `arguments`.
    pub fn library_with(&self, name: &str, to: &Path, arguments: &[&str]) -> Result<(), Outcome> {
        let name = format!("-DSTANDIN_NAME=\"{name}\"");
        self.compile("standin.cpp", to, &[&["-shared", &name], arguments].concat())
    }

    /// The library, and the object files of its programs.
    pub fn built(&self) -> Result<&Built, Outcome> {
        let built = self.built.get_or_init(|| {
            let dir = common::scratch(&format!("inject_{}", self.name.replace([' ', '.'], "_")));
            let built = Built {
                library: dir.join(self.soname),
                archive: dir.join("standin.o"),
                client: dir.join("client.o"),
                looks_up: dir.join("looks_up.o"),
                dir,
            };
            self.library(self.soname, &built.library)?;
            self.compile("standin.cpp", &built.archive, &["-c", "-DSTANDIN_NAME=\"static\""])?;
            self.compile("client.cpp", &built.client, &["-c"])?;
            self.compile("client.cpp", &built.looks_up, &["-c", "-DLOOK_UP"])?;
            Ok(built)
        });
        built.as_ref().map_err(Outcome::clone)
    }
}

impl Built {
    /// Compiles a source of this folder with its headers.
    pub fn program(&self, version: &Version, source: &str, arguments: &[&str]) -> Result<PathBuf, Outcome> {
        let program = self.dir.join(source.replace(".cpp", ""));
        let mut all = arguments.to_vec();
        let rpath = format!("-Wl,-rpath,{}", self.dir.display());
        all.push(&rpath);
        version.compile(source, &program, &all)?;
        Ok(program)
    }

    /// Links `parts` to `name`, unless that was done before.
    pub fn link(&self, name: &str, arguments: &[&str], parts: &[&Path]) -> PathBuf {
        let _one = LINKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let program = self.dir.join(name);
        if !program.exists() {
            let mut link = common::cxx();
            link.args(["-g", "-pthread"]).args(arguments).args(parts);
            link.arg(format!("-Wl,-rpath,{}", self.dir.display()));
            common::run(link.arg("-o").arg(&program));
        }
        program
    }

    /// A program that is linked with TensorRT.
    pub fn linked(&self, name: &str, arguments: &[&str]) -> PathBuf {
        self.link(
            name,
            arguments,
            &[&sources().join("main.cpp"), &self.client, &self.library],
        )
    }

    /// This library under its linker name, next to TensorRT's.
    pub fn ours(&self) -> PathBuf {
        static MAKING: Mutex<()> = Mutex::new(());
        let _one = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let link = self.dir.join("libtrtalloc.so.0");
        if !link.exists() {
            std::os::unix::fs::symlink(ours(), &link).unwrap();
        }
        link
    }

    /// A program that is linked with trtalloc, and then with TensorRT.
    pub fn linked_with_both(&self) -> PathBuf {
        self.linked_behind("both", "-Wl,--no-as-needed")
    }

    /// The same with a linker that leaves TensorRT out, because trtalloc before it has all the names.
    pub fn left_out(&self) -> PathBuf {
        self.linked_behind("left_out", "-Wl,--as-needed")
    }

    fn linked_behind(&self, name: &str, needed: &str) -> PathBuf {
        let main = sources().join("main.cpp");
        self.link(name, &[needed], &[&main, &self.client, &self.ours(), &self.library])
    }

    /// A program that contains TensorRT.
    pub fn linked_in(&self) -> PathBuf {
        let main = sources().join("main.cpp");
        self.link("static", &[], &[&main, &self.client, &self.archive])
    }

    /// A plugin that is linked with TensorRT.
    pub fn plugin(&self) -> PathBuf {
        self.link("plugin.so", &["-shared"], &[&self.client, &self.library])
    }

    /// A plugin that opens TensorRT and looks its functions up.
    pub fn plugin_that_looks_up(&self) -> PathBuf {
        self.link("looking.so", &["-shared"], &[&self.looks_up])
    }

    /// A program that opens TensorRT and looks its functions up.
    pub fn looks_up(&self) -> PathBuf {
        self.link("looks_up", &[], &[&sources().join("main.cpp"), &self.looks_up])
    }
}

/// The program that opens plugins.
pub fn host() -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| build("host.cpp", "host", &[]))
}

/// A program or library from one file of this folder that does not use TensorRT.
pub fn build(source: &str, name: &str, arguments: &[&str]) -> PathBuf {
    let built = common::scratch(&format!("inject_{name}")).join(name);
    let mut compile = common::cxx();
    compile.args(["-g", "-pthread"]).arg(sources().join(source));
    common::run(compile.args(arguments).arg("-o").arg(&built));
    built
}

/// An error if there is no Python.
pub fn python() -> Result<(), Outcome> {
    match Command::new("python3").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Outcome::Skipped("python", "no python3".to_owned())),
    }
}

/// The TensorRT of that name.
pub fn of(name: &str) -> &'static Version {
    VERSIONS
        .iter()
        .find(|version| version.name == name)
        .expect("one of them")
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a test, or reports what it lacks.
pub fn tested(body: impl FnOnce() -> Result<(), Outcome>) {
    match body() {
        Ok(()) | Err(Outcome::Passed) => {}
        Err(Outcome::Skipped(what, reason)) => common::skip(what, &reason),
        Err(Outcome::Failed(reason)) => panic!("{reason}"),
    }
}

/// This build's library.
pub fn ours() -> PathBuf {
    common::library_dir().join("libtrtalloc.so")
}

/// The command that runs a program on the simulated device.
pub fn start(program: &Path, arguments: &[&str]) -> Command {
    let mut command = table::program(program);
    command.args(arguments).env_remove("LD_PRELOAD");
    command
        .env("TRTALLOC_DRIVER", "sim")
        .env("TRTALLOC_SIM_MEMORY", "256MiB");
    command
}

/// The same with the library preloaded.
pub fn preloaded(program: &Path, arguments: &[&str]) -> Command {
    let mut command = start(program, arguments);
    command.env("LD_PRELOAD", ours());
    command
}

/// A run's stdout and stderr. Checks that it succeeds.
pub fn texts(command: &mut Command) -> (String, String) {
    let Output { stdout, stderr, .. } = common::run(command);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(stdout), text(stderr))
}

/// The output of a client whose objects use this allocator: each uses it for a block that is resized and for one more.
pub fn attached(soname: &str) -> String {
    format!("{soname} runtime: attached\n{soname} builder: attached\n4 allocations, 2 resizes, 4 frees, 0 bytes left\n")
}

/// The output of a client whose objects use TensorRT's own allocator, with trtalloc in the process.
pub fn own(soname: &str) -> String {
    format!("{soname} runtime: own\n{soname} builder: own\n0 allocations, 0 resizes, 0 frees, 0 bytes left\n")
}
