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

    pub(super) fn build() {
        println!("cargo:rerun-if-changed={FOLDER}");
        let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo tells build scripts where to write"));
        fs::create_dir_all(&to).expect("cargo's own folder can be written");
        let built = SkeletonBuilder::new()
            .source(SOURCE)
            // Version 3 of the instruction set has the atomics; every kernel with tcx knows it.
            .clang_args(["-mcpu=v3", "-Wall", "-Werror"])
            .obj(to.join("shaper.bpf.o"))
            .build();
        if let Err(error) = built {
            panic!(
                "cannot compile {SOURCE}: {error:#}\nthe feature `bpf` needs clang, libelf-dev, zlib1g-dev and pkg-config: \
                 sudo apt-get install --no-install-recommends clang libelf-dev zlib1g-dev pkg-config"
            );
        }
    }
}
