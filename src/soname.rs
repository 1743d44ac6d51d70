//! The soname: the name by which programs find the library at run time. The build script checks that Cargo.toml has it.

/// The soname that a version must have. Before 1.0, a minor version may change the interface that programs see, so each
/// minor version has a soname of its own, and several can be installed. 0.1 is the exception: its soname was chosen
/// before this rule.
pub fn soname_of(version: &str) -> String {
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    match (major, minor) {
        ("0", "0" | "1") => "libtrtalloc.so.0".to_owned(),
        ("0", minor) => format!("libtrtalloc.so.0.{minor}"),
        (major, _) => format!("libtrtalloc.so.{major}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_1_0_every_minor_version_has_a_name_of_its_own() {
        for (version, soname) in [
            ("0.1.0", "libtrtalloc.so.0"),
            ("0.1.7", "libtrtalloc.so.0"),
            ("0.2.0", "libtrtalloc.so.0.2"),
            ("0.2.1-rc.1", "libtrtalloc.so.0.2"),
            ("0.10.3", "libtrtalloc.so.0.10"),
            ("1.0.0", "libtrtalloc.so.1"),
            ("1.7.2", "libtrtalloc.so.1"),
            ("2.0.0", "libtrtalloc.so.2"),
        ] {
            assert_eq!(soname_of(version), soname, "{version}");
        }
    }

    #[test]
    fn the_python_package_requires_this_soname() {
        assert_eq!(soname_of(env!("CARGO_PKG_VERSION")), env!("TRTALLOC_SONAME"));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/python/trtalloc/_library.py");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(concat!("\n_SONAME = \"", env!("TRTALLOC_SONAME"), "\"\n")));
    }
}
