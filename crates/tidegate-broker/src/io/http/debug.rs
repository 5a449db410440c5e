//! The paths below `/debug`, which in nsqd are those of Go's profiler.

use std::os::unix::ffi::OsStringExt;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::answer::{Refusal, plain};

/// One of these paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Debug {
    /// `pprof/`: what there is.
    Index,
    /// `pprof/cmdline`: how the process was started.
    CommandLine,
    /// `pprof/symbol`: Go's tools ask it whether there are symbols.
    Symbol,
    /// A profile of Go's runtime.
    Profile,
    /// `freememory`: has nothing to do, since freed memory goes back by itself.
    FreeMemory,
    /// `setblockrate`: of a profile that does not exist here.
    SetBlockRate,
}

impl Debug {
    pub(super) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "pprof/" | "pprof" => Self::Index,
            "pprof/cmdline" => Self::CommandLine,
            "pprof/symbol" => Self::Symbol,
            "pprof/profile" | "pprof/heap" | "pprof/goroutine" | "pprof/block" | "pprof/threadcreate" => Self::Profile,
            "freememory" => Self::FreeMemory,
            "setblockrate" => Self::SetBlockRate,
            _ => return None,
        })
    }

    pub(super) fn answer(self) -> Response {
        match self {
            Self::Index => plain(
                StatusCode::OK,
                "cmdline\n\nProfiles of Go's runtime do not exist here; use perf on the process.\n",
            ),
            Self::CommandLine => {
                let arguments = std::env::args_os().map(OsStringExt::into_vec).collect::<Vec<_>>();
                plain(StatusCode::OK, String::from_utf8_lossy(&arguments.join(&0)).into_owned())
            }
            Self::Symbol => plain(StatusCode::OK, "num_symbols: 0\n"),
            Self::FreeMemory => plain(StatusCode::OK, "OK"),
            Self::Profile | Self::SetBlockRate => {
                Refusal::new(StatusCode::NOT_IMPLEMENTED, "NO_GO_RUNTIME").into_response()
            }
        }
    }
}
