//! The documentation: its links, excerpts and command outputs.

#[path = "../../../../core/examples/one_episode.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod one_episode;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::directory::Directory;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().into()
}

/// Returns all Markdown files outside of build and hidden directories.
fn pages() -> Vec<PathBuf> {
    let (mut pages, mut directories) = (Vec::new(), vec![repository()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                directories.extend((name != "target" && !name.starts_with('.')).then_some(path));
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 10);
    pages
}

/// Returns the text outside of fenced code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Returns the anchors of headings as forges generate them: lower case, hyphens for spaces, no punctuation.
fn anchors(page: &str) -> Vec<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_have_targets() {
    let mut followed = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in prose(&text).split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let there = anchors(&fs::read_to_string(&target).unwrap());
                assert!(
                    there.iter().any(|other| other == anchor),
                    "{}: {link} is not one of {there:?}",
                    page.display()
                );
            }
            followed += 1;
        }
    }
    assert!(followed > 100, "{followed} links");
}

/// The files in the table define the names beside them.
#[test]
fn table_from_paper_to_code_names_existing_items() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let table = readme.split_once("\n## From the paper to the code\n").unwrap().1;
    let mut found = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")).take_while(|line| !line.starts_with("##")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let files = cells[2].split("](").skip(1).map(|rest| repository().join(rest.split([')', '#']).next().unwrap()));
        let files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|kind| kind == "rs")).collect();
        let code: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        for name in cells[1].split('`').skip(1).step_by(2).filter(|_| !files.is_empty()) {
            let name = name.rsplit("::").next().unwrap();
            assert!(code.contains(name), "{row}: {name} not found");
            found += 1;
        }
    }
    assert!(found > 30, "{found} names");
}

/// Returns the fenced blocks after a comment `<!-- WORD argument -->`, with the argument.
fn marked<'a>(page: &'a str, word: &str) -> Vec<(&'a str, &'a str)> {
    let start = format!("<!-- {word}");
    let block = |rest: &'a str| {
        let (argument, rest) = rest.split_once(" -->\n```").unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        (argument.trim(), rest.split_once("```").unwrap().0)
    };
    page.split(&start).skip(1).map(block).collect()
}

#[test]
fn excerpts_match_their_files() {
    let mut compared = 0;
    for page in pages() {
        for (file, excerpt) in marked(&fs::read_to_string(&page).unwrap(), "from ") {
            let text = fs::read_to_string(repository().join(file)).unwrap();
            assert!(text.contains(excerpt), "{}: not in {file}:\n{excerpt}", page.display());
            compared += 1;
        }
    }
    assert!(compared >= 8, "{compared} excerpts");
}

/// Runs the blocks marked `run` in one directory per page, with the files that the page shows.
#[test]
fn commands_print_the_documented_output() {
    let mut commands = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let here = Directory::new(&format!("docs-{}", page.file_stem().unwrap().display()));
        for (file, content) in marked(&text, "file: ") {
            fs::write(here.0.join(file), content).unwrap();
        }
        for (_, block) in marked(&text, "run") {
            for command in block.split("$ fedbandit ").skip(1) {
                let (arguments, expected) = command.split_once('\n').unwrap();
                let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
                let output = command.current_dir(&here.0).args(arguments.split_whitespace()).output().unwrap();
                let printed = String::from_utf8(output.stdout).unwrap();
                assert_eq!(printed.trim_end(), expected.trim_end(), "{}: {arguments}", page.display());
                commands += 1;
            }
        }
    }
    assert!(commands >= 15, "{commands} commands");
}

#[test]
fn one_episode_example_prints_the_documented_output() {
    let guide = fs::read_to_string(repository().join("docs/guide/firmware.md")).unwrap();
    assert!(guide.contains(&one_episode::one_episode().unwrap().to_string()));
}

/// docs/guide.md promises examples of less than 60 lines.
#[test]
fn examples_are_short() {
    let examples: Vec<_> =
        fs::read_dir(repository().join("host/examples")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(examples.len(), 4);
    for file in examples.iter().chain([&repository().join("firmware-example/src/board/mps2.rs")]) {
        let lines = fs::read_to_string(file).unwrap().lines().count();
        assert!(lines < 60, "{} has {lines} lines", file.display());
    }
}
