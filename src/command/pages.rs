//! The man pages in cmake/man and the completions in cmake/completions are those of the command's own help.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::aot::{Shell, generate};

use super::Command;

/// The command without what only `-h` leaves out: a man page is a long help.
fn described(command: clap::Command) -> clap::Command {
    command
        .mut_args(|option| option.hide_short_help(false))
        .mut_subcommands(described)
}

/// The files by their path in the checkout.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut command = described(Command::command()).disable_help_subcommand(true);
    command.build();
    man_pages(&command, &mut files);
    let shells = [
        (Shell::Bash, "trtalloc"),
        (Shell::Fish, "trtalloc.fish"),
        (Shell::Zsh, "_trtalloc"),
    ];
    for (shell, name) in shells {
        let mut text = Vec::new();
        generate(shell, &mut described(Command::command()), "trtalloc", &mut text);
        let text = String::from_utf8(text).unwrap();
        files.insert(Path::new("cmake/completions").join(name), text);
    }
    // Without spaces at the ends of lines, in which clap's text has some.
    let trimmed = |text: String| text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    files.into_iter().map(|(path, text)| (path, trimmed(text))).collect()
}

/// Adds the pages of a command and those below it.
fn man_pages(command: &clap::Command, files: &mut BTreeMap<PathBuf, String>) {
    command.get_subcommands().for_each(|command| man_pages(command, files));
    let man = clap_mangen::Man::new(command.clone()).source(concat!("trtalloc ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text).unwrap();
    files.insert(
        Path::new("cmake/man").join(man.get_filename()),
        String::from_utf8(text).unwrap(),
    );
}

fn committed() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    for folder in ["cmake/man", "cmake/completions"] {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            files.insert(path.clone(), std::fs::read_to_string(path).unwrap());
        }
    }
    files
}

#[test]
fn man_pages_and_completions_are_those_of_the_commands_help() {
    let pages = pages();
    if std::env::var_os("TRTALLOC_BLESS").is_some() {
        for path in committed().keys().filter(|path| !pages.contains_key(*path)) {
            std::fs::remove_file(path).unwrap();
        }
        for (path, text) in &pages {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    let committed = committed();
    let paths = pages.keys().chain(committed.keys());
    let differ: Vec<_> = paths.filter(|path| pages.get(*path) != committed.get(*path)).collect();
    assert!(
        differ.is_empty(),
        "{differ:?} differ from the command's help: TRTALLOC_BLESS=1 cargo test --bin trtalloc pages"
    );
}

#[test]
fn man_pages_name_the_version() {
    for (path, text) in pages() {
        let names = text.contains(concat!(" ", env!("CARGO_PKG_VERSION")));
        assert!(names || path.starts_with("cmake/completions"), "{}", path.display());
    }
}
