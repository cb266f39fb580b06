//! Passes PyO3's configuration on, so that `cfg(Py_GIL_DISABLED)` means the same here as in PyO3.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
}
