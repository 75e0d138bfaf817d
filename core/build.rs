//! Sets the cfg `optimise_for_size` when the build is for size.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(optimise_for_size)");
    if matches!(std::env::var("OPT_LEVEL").as_deref(), Ok("s" | "z")) {
        println!("cargo:rustc-cfg=optimise_for_size");
    }
}
