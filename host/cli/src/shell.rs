//! `fedbandit completions` and `man`.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, EXIT_CODES, Failure, VERSION, print_line, write_file_with};

const HELP: &str = "\
Examples:
  fedbandit completions bash > ~/.local/share/bash-completion/completions/fedbandit
  fedbandit completions zsh > ~/.zfunc/_fedbandit";

/// Generate shell completions.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct CompletionsArgs {
    /// Shell to complete for.
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "fedbandit", &mut text);
        print_line(&String::from_utf8_lossy(&text).trim_end())
    }
}

const MAN_HELP: &str = "\
Example:
  fedbandit man --out /usr/local/share/man/man1";

/// Generate man pages, one per command.
#[derive(clap::Args)]
#[command(after_long_help = format!("{MAN_HELP}\n\n{EXIT_CODES}"))]
pub(super) struct ManArgs {
    /// Output directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

impl ManArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut program = Cli::command();
        program.build();
        let pages = program.get_subcommands().filter(|command| command.get_name() != "help");
        let named = pages.map(|command| (format!("fedbandit-{}", command.get_name()), command.clone()));
        for (name, command) in [("fedbandit".to_owned(), program.clone())].into_iter().chain(named) {
            let file = self.out.join(format!("{name}.1"));
            let page = Man::new(command.name(name.clone()).display_name(name)).source(format!("fedbandit {VERSION}"));
            write_file_with(&file, |writer| {
                let mut text = Vec::new();
                page.render(&mut text)?;
                writer.write_all(&text)
            })?;
        }
        let count = program.get_subcommands().count();
        print_line(&format!("{count} man pages in {}", self.out.display()))
    }
}
