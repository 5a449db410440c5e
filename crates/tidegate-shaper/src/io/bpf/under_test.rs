//! Programs that are run on frames, without a device.

use super::object::Object;
use crate::machine::program::DeviceProgram;

/// The programs with time, queue and random numbers as they are told. `None`, with a word, without the right to load them.
pub(super) fn load(program: &DeviceProgram) -> Option<Object> {
    let mut object = match Object::load_under_test(program) {
        Ok(object) => object,
        Err(error) if !rustix::process::geteuid().is_root() => {
            eprintln!("not run: the kernel does not let us load programs ({error})");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    for (&slot, class) in &program.classes {
        object.set_class(slot, class, program.ecn).unwrap();
    }
    Some(object)
}
