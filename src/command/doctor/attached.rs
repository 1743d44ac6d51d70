//! Whether a process has loaded libtrtalloc.so, and which TensorRT libraries it has loaded.

use std::collections::BTreeSet;

use super::findings::Findings;

/// Reports what `LD_PRELOAD` has done to this process. False where the loader ignored a library that it names.
pub fn this_process(findings: &mut Findings) -> bool {
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let (library, _) = loaded("self").unwrap_or_default();
    match library {
        Some(path) => {
            findings.found("this process", &format!("has loaded {path}"));
            findings.advice(
                "In LD_PRELOAD it sets its pool on TensorRT's objects. A program linked with it needs TRTALLOC_INJECT=1, or \
                 setGpuAllocator.",
            );
        }
        None if preload.contains("trtalloc") => {
            findings.found(
                "this process",
                &format!("no, though LD_PRELOAD is {preload:?}: the loader did not take it"),
            );
            findings
                .advice("Is that path right, and the library for this machine? The loader only warns and continues.");
            return false;
        }
        None => {
            findings.found("this process", "no");
            findings.advice(
                "`trtalloc run -- PROGRAM` attaches it to an unchanged program; `trtalloc doctor PROGRAM` says beforehand \
                 what that would catch. An application that can be changed gives the allocator to TensorRT: \
                 runtime->setGpuAllocator(trtalloc::tensorrt(memory)).",
            );
        }
    }
    true
}

/// Reports whether another process has loaded the library.
pub fn process(pid: u32, findings: &mut Findings) -> bool {
    let what = format!("process {pid}");
    match loaded(&pid.to_string()) {
        Err(error) => {
            findings.found(&what, &format!("cannot be inspected: {error}"));
            findings.advice("Is that its number, and is it yours? Otherwise run the doctor as root.");
            false
        }
        Ok((library, tensorrt)) => {
            let tensorrt: Vec<_> = tensorrt.into_iter().collect();
            let with = match tensorrt.is_empty() {
                true => "no TensorRT".to_owned(),
                false => tensorrt.join(", "),
            };
            match &library {
                Some(path) => findings.found(&what, &format!("has loaded {path}, and {with}")),
                None => {
                    findings.found(&what, &format!("has not loaded libtrtalloc.so; it has {with}"));
                    findings.advice(
                        "Is the program linked with it, and is it the library that is found at run time? Try ldd.",
                    );
                }
            }
            library.is_some()
        }
    }
}

/// The path of libtrtalloc.so in a process, and its TensorRT libraries.
fn loaded(process: &str) -> std::io::Result<(Option<String>, BTreeSet<String>)> {
    // Paths have any bytes.
    let maps = std::fs::read(format!("/proc/{process}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let mut library = None;
    let mut tensorrt = BTreeSet::new();
    for path in maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| &line[start..]))
    {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.starts_with("libtrtalloc.so") {
            library.get_or_insert_with(|| path.to_owned());
        } else if name.starts_with("libnvinfer") || name.starts_with("libtensorrt_rtx.so") {
            tensorrt.insert(path.to_owned());
        }
    }
    Ok((library, tensorrt))
}
