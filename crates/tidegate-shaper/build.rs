//! Compiles the kernel's programs, if the feature asks for them.

fn main() {
    #[cfg(feature = "bpf")]
    programs::build();
}

#[cfg(feature = "bpf")]
mod programs {
    use std::path::PathBuf;
    use std::{env, fs};

    use libbpf_cargo::SkeletonBuilder;

    const FOLDER: &str = "bpf";
    const SOURCE: &str = "bpf/shaper.bpf.c";
    /// The second form reads nothing of the kernel's own structures, so that it needs no BTF of the running kernel.
    const FORMS: [(&str, &[&str]); 2] = [("shaper.bpf.o", &[]), ("shaper_without_btf.bpf.o", &["-DWITHOUT_BTF"])];

    pub(super) fn build() {
        println!("cargo:rerun-if-changed={FOLDER}");
        let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo tells build scripts where to write"));
        fs::create_dir_all(&to).expect("cargo's own folder can be written");
        for (object, definitions) in FORMS {
            // Version 3 of the instruction set has the atomics; every kernel with tcx knows it.
            let arguments = ["-mcpu=v3", "-Wall", "-Werror"].iter().chain(definitions);
            let built = SkeletonBuilder::new().source(SOURCE).clang_args(arguments).obj(to.join(object)).build();
            if let Err(error) = built {
                panic!(
                    "cannot compile {SOURCE}: {error:#}\nthe feature `bpf` needs clang, libelf-dev, zlib1g-dev and \
                     pkg-config: sudo apt-get install --no-install-recommends clang libelf-dev zlib1g-dev pkg-config"
                );
            }
        }
    }
}
