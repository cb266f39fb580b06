//! Passes on what PyO3 found out about the interpreter, so that `cfg(Py_GIL_DISABLED)` means here what it means there.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
}
