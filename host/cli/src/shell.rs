//! `fedbandit completions` and `man`: what shells and manuals want to know of this program.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, EXIT_CODES, Failure, VERSION, replace_file, write};

const HELP: &str = "\
Examples:
  fedbandit completions bash > ~/.local/share/bash-completion/completions/fedbandit
  fedbandit completions zsh > ~/.zfunc/_fedbandit";

/// Print what a shell needs to complete commands and options.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "fedbandit", &mut text);
        write(&String::from_utf8_lossy(&text).trim_end())
    }
}

/// Write manual pages, one for each command.
#[derive(clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub(super) struct ManArgs {
    /// Where to, as /usr/local/share/man/man1.
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
            replace_file(&file, |writer| {
                let mut text = Vec::new();
                page.render(&mut text)?;
                writer.write_all(&text)
            })?;
        }
        let count = program.get_subcommands().count();
        write(&format!("{count} manual pages: {}", self.out.join("fedbandit.1").display()))
    }
}
