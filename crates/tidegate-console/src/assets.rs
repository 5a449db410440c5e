//! The embedded pages.
//!
//! They are looked up by their exact name among the embedded files; no request ever becomes a file path.

use std::fmt::Write as _;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;
use tidegate_runtime::http::Problem;

#[derive(RustEmbed)]
#[folder = "web/dist"]
struct Bundle;

/// The page. All views are one page; it looks at its own address.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    serve("index.html", &headers)
}

/// A script, a style sheet or an image of the page.
pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = Bundle::get(name) else {
        return Problem::untyped(StatusCode::NOT_FOUND, "No such asset", "the console's page is at /").into_response();
    };
    let etag = file.metadata.sha256_hash()[..16].iter().fold(String::from("\""), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }) + "\"";
    // Asked for again each time, answered with 304: no browser runs the pages of the release before.
    let common = [(header::ETAG, etag.as_str()), (header::CACHE_CONTROL, "no-cache")];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    let content_type = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    (common, [(header::CONTENT_TYPE, content_type)], file.data).into_response()
}
