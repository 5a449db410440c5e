//! What an experiment leaves behind.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{Experiment, Size};
use crate::figure::{DrawError, Figure};
use crate::table::Table;

/// The results of one experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// What its files are called.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// True if only a part was run.
    pub quick: bool,
    /// What was asked, as in the file.
    pub experiment: Experiment,
    /// What was claimed of it, and whether it held.
    pub claims: Vec<Claim>,
    /// The numbers, for programs.
    pub results: Value,
    /// The numbers, for people.
    #[serde(skip)]
    pub table: Table,
    /// The picture.
    #[serde(skip)]
    pub figure: Option<Figure>,
    /// More pictures, with what their files' names end in.
    #[serde(skip)]
    pub figures: Vec<(String, Figure)>,
}

/// Something that an experiment should show.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Claim {
    /// What.
    pub claim: String,
    /// Whether it did.
    pub held: bool,
    /// What was seen.
    pub seen: String,
}

/// What a kind of experiment finds.
#[derive(Default)]
pub(super) struct Results {
    pub(super) claims: Vec<Claim>,
    pub(super) numbers: Value,
    pub(super) table: Table,
    pub(super) figure: Option<Figure>,
    pub(super) figures: Vec<(String, Figure)>,
}

/// Results could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file cannot be written.
    #[error("cannot write {}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The figure cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

impl Outcome {
    pub(super) fn new(name: &str, experiment: &Experiment, size: Size, results: Results) -> Self {
        let Results { claims, numbers, table, figure, figures } = results;
        Self {
            name: name.to_owned(),
            title: experiment.title.clone(),
            quick: size == Size::Quick,
            experiment: experiment.clone(),
            claims,
            results: numbers,
            table,
            figure,
            figures,
        }
    }

    /// True if every claim held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.held)
    }

    /// Writes `<name>.txt`, `<name>.json` and, if there are figures, `<name>.svg` and `<name>_<which>.svg` into
    /// `folder`, which is made if it is not there. Returns what was written.
    ///
    /// # Errors
    /// If a file cannot be written or the figure not be drawn.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, WriteError> {
        fs::create_dir_all(folder).map_err(|source| WriteError::File { file: folder.to_owned(), source })?;
        let json = serde_json::to_string_pretty(self).expect("results are plain numbers and text") + "\n";
        let mut contents = vec![(".txt".to_owned(), self.to_string()), (".json".to_owned(), json)];
        if let Some(figure) = &self.figure {
            contents.push((".svg".to_owned(), figure.to_svg()?));
        }
        for (which, figure) in &self.figures {
            contents.push((format!("_{which}.svg"), figure.to_svg()?));
        }
        let mut written = Vec::new();
        for (ending, content) in contents {
            let file = folder.join(format!("{}{ending}", self.name));
            fs::write(&file, content).map_err(|source| WriteError::File { file: file.clone(), source })?;
            written.push(file);
        }
        Ok(written)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = if self.quick { " (quick)" } else { "" };
        writeln!(f, "{}{part}\nseed {}\n\n{}", self.title, self.experiment.seed, self.table)?;
        for Claim { claim, held, seen } in &self.claims {
            writeln!(f, "{}  {claim}: {seen}", if *held { "held" } else { "FAILED" })?;
        }
        Ok(())
    }
}
