//! The slot of setGpuAllocator in every available header of NVIDIA.

use std::process::Command;

use trtalloc::ffi::preload::{ObjectType, setter_slot};

use crate::common;
use crate::inject::headers;
use crate::inject::table::Outcome;

#[test]
fn setter_slots_match_nvidias_headers() {
    for headers in headers::all() {
        let id = format!("{}_{}", headers.crate_version, headers.name.replace(' ', "_"));
        let program = common::scratch(&format!("inject_slots_{id}")).join("slots");
        let mut compile = common::cxx();
        if let Err(Outcome::Skipped(what, reason)) = headers.include(&mut compile) {
            common::skip(what, &reason);
        }
        compile.arg(common::root().join("tests/programs/inject/slots.cpp"));
        common::run(compile.arg("-o").arg(&program));
        let said = String::from_utf8(common::run(&mut Command::new(&program)).stdout).unwrap();
        let said: Vec<usize> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let version = said[0] as i32;
        let known = [ObjectType::Runtime, ObjectType::Builder].map(|kind| setter_slot(kind, version));
        assert_eq!(
            known,
            [Some(said[1]), Some(said[2])],
            "TensorRT {} {version}",
            headers.name
        );
    }
}

#[test]
fn unpublished_versions_have_no_slot() {
    for version in [
        i32::MIN,
        -1,
        0,
        7103,
        7999,
        10_000,
        10_200,
        10_800,
        19_999,
        99_999,
        120_000,
        i32::MAX,
    ] {
        assert_eq!(setter_slot(ObjectType::Runtime, version), None, "{version}");
        assert_eq!(setter_slot(ObjectType::Builder, version), None, "{version}");
    }
}
