//! NVIDIA's libraries from PyPI. They are proprietary: installed into the build's folder when the tests run, never kept here.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::table::Outcome;
use super::wheel;

/// A wheel of libraries: its name, version, and the folder in it.
pub struct Package {
    pub name: &'static str,
    pub version: &'static str,
    pub folder: &'static str,
    got: OnceLock<Result<PathBuf, String>>,
}

impl Package {
    pub const fn new(name: &'static str, version: &'static str, folder: &'static str) -> Package {
        Package {
            name,
            version,
            folder,
            got: OnceLock::new(),
        }
    }

    /// The folder with its libraries, fetched where it is not there yet.
    pub fn libraries(&self) -> Result<&Path, Outcome> {
        let got = self.got.get_or_init(|| self.fetch());
        match got {
            Ok(dir) => Ok(dir),
            Err(reason) => Err(Outcome::Skipped("tensorrt", format!("{}: {reason}", self.name))),
        }
    }

    fn fetch(&self) -> Result<PathBuf, String> {
        let libraries = wheel::fetch(self.name, self.version)?.join(self.folder);
        match libraries.exists() {
            true => Ok(libraries),
            false => Err(format!("no folder {} in it", self.folder)),
        }
    }
}
