//! Every TensorRT with every way to inject.

use std::process::Command;
use std::sync::OnceLock;

use crate::inject::standin::{self, Built, VERSIONS, Version, attached, own, preloaded, start, text, texts};
use crate::inject::table::{self, Outcome, Row};

/// The allocator that is expected.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Attached,
    Own,
    /// As `Own`, in a program that contains TensorRT under that name.
    Static,
}

struct Way {
    what: &'static str,
    with: &'static str,
    expected: Expected,
    command: fn(&Built) -> Command,
}

/// The client in Python: a plugin opened with RTLD_LOCAL, after trtalloc was opened with RTLD_GLOBAL.
const PYTHON: &str = "
import ctypes, sys
ours = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
if sys.argv[3] == 'inject':
    assert ours.trtalloc_inject(1) == 0
plugin = ctypes.CDLL(sys.argv[2])
assert plugin.client(b'', b'') == 0
";

fn python(built: &Built, what: &str) -> Command {
    let mut command = start("python3".as_ref(), &["-c", PYTHON]);
    command.arg(standin::ours()).arg(built.plugin()).arg(what);
    command
}

const WAYS: &[Way] = &[
    Way {
        what: "linked",
        with: "LD_PRELOAD",
        expected: Expected::Attached,
        command: |built| preloaded(&built.linked("linked", &[]), &[]),
    },
    Way {
        what: "linked, -z now",
        with: "LD_PRELOAD",
        expected: Expected::Attached,
        command: |built| preloaded(&built.linked("now", &["-Wl,-z,now"]), &[]),
    },
    Way {
        what: "a plugin that is linked, opened RTLD_LOCAL",
        with: "LD_PRELOAD",
        expected: Expected::Attached,
        command: |built| preloaded(standin::host(), &["local", "", text(&built.plugin())]),
    },
    Way {
        what: "dlopen and dlsym",
        with: "LD_PRELOAD",
        expected: Expected::Attached,
        command: |built| preloaded(&built.looks_up(), &[text(&built.library)]),
    },
    Way {
        what: "a module of Python that is linked",
        with: "opened RTLD_GLOBAL before, trtalloc_inject(1)",
        expected: Expected::Attached,
        command: |built| python(built, "inject"),
    },
    Way {
        what: "linked",
        with: "linked before TensorRT, TRTALLOC_INJECT=1",
        expected: Expected::Attached,
        command: |built| {
            let mut command = start(&built.linked_with_both(), &[]);
            command.env("TRTALLOC_INJECT", "1");
            command
        },
    },
    Way {
        what: "linked",
        with: "linked before TensorRT, and no more",
        expected: Expected::Own,
        command: |built| start(&built.linked_with_both(), &[]),
    },
    Way {
        what: "linked, and left out by --as-needed",
        with: "linked before TensorRT, TRTALLOC_INJECT=1",
        expected: Expected::Attached,
        command: |built| {
            let mut command = start(&built.left_out(), &[]);
            command.env("TRTALLOC_INJECT", "1");
            command
        },
    },
    Way {
        what: "linked, and left out by --as-needed",
        with: "linked before TensorRT, and no more",
        expected: Expected::Own,
        command: |built| start(&built.left_out(), &[]),
    },
    Way {
        what: "a module of Python that is linked",
        with: "opened RTLD_GLOBAL before, and no more",
        expected: Expected::Own,
        command: |built| python(built, ""),
    },
    Way {
        what: "linked",
        with: "LD_PRELOAD, TRTALLOC_DISABLE=1",
        expected: Expected::Own,
        command: |built| {
            let mut command = preloaded(&built.linked("linked", &[]), &[]);
            command.env("TRTALLOC_DISABLE", "1");
            command
        },
    },
    Way {
        what: "dlopen and dlsym",
        with: "LD_PRELOAD, TRTALLOC_DISABLE=1",
        expected: Expected::Own,
        command: |built| {
            let mut command = preloaded(&built.looks_up(), &[text(&built.library)]);
            command.env("TRTALLOC_DISABLE", "1");
            command
        },
    },
    Way {
        what: "a plugin that is linked, opened RTLD_DEEPBIND",
        with: "LD_PRELOAD",
        expected: Expected::Own,
        command: |built| preloaded(standin::host(), &["deep", "", text(&built.plugin())]),
    },
    Way {
        what: "TensorRT linked into the program",
        with: "LD_PRELOAD",
        expected: Expected::Static,
        command: |built| preloaded(&built.linked_in(), &[]),
    },
];

fn try_way(version: &Version, way: &Way) -> Result<(), Outcome> {
    let built = version.built()?;
    if way.what.contains("Python") {
        standin::python()?;
    }
    let (stdout, stderr) = texts(&mut (way.command)(built));
    let expected = match way.expected {
        Expected::Attached => attached(version.soname),
        Expected::Own => own(version.soname),
        Expected::Static => own("static"),
    };
    assert_eq!(stdout, expected, "{stderr}");
    assert_eq!(stderr, "");
    Ok(())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        for way in WAYS {
            for version in &VERSIONS {
                rows.push(Row::of(version.name, way.what, way.with, way.result(), || {
                    try_way(version, way).map_or_else(|outcome| outcome, |()| Outcome::Passed)
                }));
            }
        }
        rows
    })
}

impl Way {
    fn result(&self) -> &'static str {
        match self.expected {
            Expected::Attached => "attached",
            Expected::Own | Expected::Static => "left alone",
        }
    }
}

#[test]
fn injection_works_in_every_way_for_every_tensorrt() {
    table::check(rows());
}
