//! NVIDIA's own headers of TensorRT 10, 11 and RTX. They come from the crate trtx-sys, through cargo, when the tests run; none
//! of them is kept here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::table::Outcome;

/// A folder of headers, and the TensorRT it is of.
type Folder = (&'static str, &'static str);

/// Versions of trtx-sys, newest first, and the folders of headers taken from each.
const CRATES: &[(&str, &[Folder])] = &[
    (
        "0.9.1",
        &[
            ("TRT-RTX-1.7", "RTX 1.7"),
            ("TRT-RTX-1.6", "RTX 1.6"),
            ("TRT-RTX-1.5", "RTX 1.5"),
            ("TRT-RTX-1.4", "RTX 1.4"),
            ("TRT-RTX-1.3", "RTX 1.3"),
            ("TRT-Enterprise-11.4", "11.4"),
        ],
    ),
    ("0.7.1", &[("TRT-Enterprise-11.0", "11.0")]),
    ("0.5.0", &[("TRT-Enterprise-10.16", "10.16")]),
];

/// The source folder of a version of trtx-sys, fetched where cargo does not have it yet; why not, where nothing may be
/// downloaded.
fn fetch(version: &str) -> Result<PathBuf, String> {
    super::may_download()?;
    // Kept between runs, so that a second one needs no network.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{version}"));
    std::fs::create_dir_all(dir.join("src")).map_err(|error| error.to_string())?;
    std::fs::write(dir.join("src/lib.rs"), "").map_err(|error| error.to_string())?;
    let manifest = format!(
        "[package]\nname = \"headers\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n\
         [dependencies]\ntrtx-sys = {{ version = \"={version}\", default-features = false }}\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).map_err(|error| error.to_string())?;
    let mut reason = String::new();
    for offline in [true, false] {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(&dir).args(["metadata", "--format-version=1"]);
        command.arg(format!(
            "--filter-platform={}-unknown-linux-gnu",
            std::env::consts::ARCH
        ));
        command.env("CARGO_NET_RETRY", "5");
        if offline {
            command.arg("--offline");
        }
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return source(&output.stdout, version)
                .ok_or_else(|| "cargo metadata does not tell where it is".to_owned());
        }
        reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    }
    Err(reason)
}

/// Finds the package's folder in what `cargo metadata` wrote.
fn source(metadata: &[u8], version: &str) -> Option<PathBuf> {
    let metadata: serde_json::Value = serde_json::from_slice(metadata).ok()?;
    let package = metadata["packages"].as_array()?.iter().find(|package| {
        // A version may have build metadata behind a plus sign.
        let its = package["version"].as_str().unwrap_or_default();
        package["name"] == "trtx-sys" && its.split('+').next() == Some(version)
    })?;
    Some(Path::new(package["manifest_path"].as_str()?).parent()?.to_owned())
}

/// A set of headers: the TensorRT's name, and what finds it for the compiler; or why there is none.
pub struct Headers {
    pub name: &'static str,
    pub crate_version: &'static str,
    folders: Result<[PathBuf; 2], String>,
}

impl Headers {
    /// The folder of the headers, and that of the crate's two-typedef cuda_runtime_api.h.
    pub fn folders(&self) -> Result<&[PathBuf; 2], Outcome> {
        self.folders
            .as_ref()
            .map_err(|reason| Outcome::Skipped("tensorrt-headers", reason.clone()))
    }

    /// Adds the folders to a compiler's command.
    pub fn include(&self, compile: &mut Command) -> Result<(), Outcome> {
        for folder in self.folders()? {
            compile.arg("-isystem").arg(folder);
        }
        // Some methods are deprecated there, and still called by older TensorRTs.
        compile.arg("-Wno-deprecated-declarations");
        Ok(())
    }
}

/// All of them, fetched once.
pub fn all() -> &'static [Headers] {
    static ALL: OnceLock<Vec<Headers>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for (crate_version, names) in CRATES {
            let crate_dir = fetch(crate_version).map_err(|reason| format!("trtx-sys: {reason}"));
            for (folder, name) in *names {
                let folders = crate_dir.clone().map(|dir| {
                    let headers = dir.join("TensorRT-Headers");
                    [headers.join(folder), headers]
                });
                all.push(Headers {
                    name,
                    crate_version,
                    folders,
                });
            }
        }
        all
    })
}

/// The headers of the TensorRT of that name, of the newest crate that has them.
pub fn of(name: &str) -> &'static Headers {
    all()
        .iter()
        .find(|headers| headers.name == name)
        .expect("a name of CRATES")
}
