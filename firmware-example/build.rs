//! Writes the linker's memory map for the selected board.

use std::{env, fs, path::PathBuf};

/// Feature, flash, RAM. The last kilobyte of each flash is reserved for the provisioning blob.
const BOARDS: [(&str, &str, &str); 5] = [
    ("NETDUINOPLUS2", "ORIGIN = 0x08000000, LENGTH = 511K", "ORIGIN = 0x20000000, LENGTH = 96K"),
    ("MPS2_AN386", "ORIGIN = 0x00000000, LENGTH = 4095K", "ORIGIN = 0x20000000, LENGTH = 4M"),
    ("MPS2_AN385", "ORIGIN = 0x00000000, LENGTH = 4095K", "ORIGIN = 0x20000000, LENGTH = 4M"),
    ("MPS2_AN505", "ORIGIN = 0x10000000, LENGTH = 4095K", "ORIGIN = 0x38000000, LENGTH = 2M"),
    ("MICROBIT", "ORIGIN = 0x00000000, LENGTH = 255K", "ORIGIN = 0x20000000, LENGTH = 16K"),
];

/// Programs in `src/bin`. They print by semihosting or not at all.
const WITHOUT_DEFMT: [&str; 9] = [
    "agent_size",
    "agent_size_baseline",
    "budget",
    "fingerprint",
    "hangs",
    "on_target",
    "one_episode",
    "panic_free",
    "panics",
];

fn main() {
    let chosen: Vec<_> =
        BOARDS.iter().filter(|(name, ..)| env::var_os(format!("CARGO_FEATURE_{name}")).is_some()).collect();
    let [(_, flash, ram)] = chosen[..] else {
        panic!("enable exactly one board feature, for example --features mps2-an386; found {}", chosen.len())
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    fs::write(out.join("memory.x"), format!("MEMORY {{ FLASH : {flash}\n RAM : {ram} }}\n")).unwrap();
    println!("cargo:rustc-link-search={}", out.display());
    println!("cargo:rustc-link-arg=-Tlink.x");
    println!("cargo:rustc-link-arg=--nmagic");
    // defmt stores its messages as symbols, which its linker script places. The other programs discard them.
    println!("cargo:rustc-link-arg-bin=device=-Tdefmt.x");
    fs::write(out.join("no-defmt.x"), "SECTIONS { /DISCARD/ : { *(.defmt .defmt.*) } }\n").unwrap();
    for bin in WITHOUT_DEFMT {
        println!("cargo:rustc-link-arg-bin={bin}=-Tno-defmt.x");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
