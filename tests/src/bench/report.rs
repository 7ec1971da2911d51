//! The measured rows (figures, a ratio and a target), as a table and as JSON.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::stats::{median, median_ratio};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Events per second.
    PerSecond,
    Micros,
    Seconds,
    Bytes,
    BytesPerSecond,
    Calls,
}

/// A value with its unit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    pub value: f64,
    pub unit: Unit,
}

impl Figure {
    pub fn new(value: f64, unit: Unit) -> Self {
        Self { value, unit }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.unit {
            // For rare events, a whole number would be too coarse.
            Unit::PerSecond if value.abs() < 10.0 => write!(f, "{value:.2} /s"),
            Unit::PerSecond => write!(f, "{value:.0} /s"),
            Unit::Micros if value >= 10_000.0 => write!(f, "{:.1} ms", value / 1000.0),
            Unit::Micros => write!(f, "{:.3} ms", value / 1000.0),
            Unit::Seconds => write!(f, "{value:.2} s"),
            Unit::Bytes if value.abs() >= 1e6 => write!(f, "{:.2} MB", value / 1e6),
            Unit::Bytes => write!(f, "{value:.0} B"),
            Unit::BytesPerSecond => write!(f, "{:.2} GB/s", value / 1e9),
            Unit::Calls => write!(f, "{value:.0} calls"),
        }
    }
}

/// The goal of a row.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The ratio is at least this.
    RatioAtLeast(f64),
    /// The ratio is at most this.
    RatioAtMost(f64),
    /// bgd's figure is at most this.
    AtMost(f64, Unit),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RatioAtLeast(ratio) => write!(f, "≥ {ratio}×"),
            Self::RatioAtMost(ratio) => write!(f, "≤ {ratio}×"),
            Self::AtMost(value, unit) => write!(f, "≤ {}", Figure::new(value, unit)),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the measurement that the row comes from.
    pub measurement: &'static str,
    pub what: String,
    pub peer: Option<String>,
    pub peer_figure: Option<Figure>,
    pub bgd: Option<Figure>,
    /// bgd's figure divided by the peer's.
    pub ratio: Option<f64>,
    pub target: Option<Target>,
    /// Whether the goal is reached. `None` without a goal or without figures.
    pub met: Option<bool>,
    /// A remark that a reader needs to interpret the row.
    pub note: Option<String>,
    pub bgd_samples: Vec<f64>,
    pub peer_samples: Vec<f64>,
}

impl Row {
    /// Creates a row without figures.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            measurement: "",
            what: what.into(),
            peer: None,
            peer_figure: None,
            bgd: None,
            ratio: None,
            target: None,
            met: None,
            note: None,
            bgd_samples: Vec::new(),
            peer_samples: Vec::new(),
        }
    }

    #[must_use]
    pub fn bgd(mut self, figure: Figure) -> Self {
        self.bgd = Some(figure);
        self.with_ratio()
    }

    /// Sets bgd's samples; their median is its figure.
    #[must_use]
    pub fn bgd_samples(mut self, samples: &[f64], unit: Unit) -> Self {
        self.bgd_samples = samples.to_vec();
        self.bgd(Figure::new(median(samples), unit))
    }

    #[must_use]
    pub fn peer(mut self, name: impl Into<String>, figure: Figure) -> Self {
        self.peer = Some(name.into());
        self.peer_figure = Some(figure);
        self.with_ratio()
    }

    /// Sets the name and samples of the peer; their median is its figure.
    #[must_use]
    pub fn peer_samples(mut self, name: impl Into<String>, samples: &[f64], unit: Unit) -> Self {
        self.peer_samples = samples.to_vec();
        self.peer(name, Figure::new(median(samples), unit))
    }

    /// Names a peer that is not installed.
    #[must_use]
    pub fn no_peer(mut self, name: impl Into<String>) -> Self {
        self.peer = Some(name.into());
        self.note("not installed")
    }

    fn with_ratio(mut self) -> Self {
        if let (Some(bgd), Some(peer)) = (self.bgd, self.peer_figure) {
            self.ratio = Some(bgd.value / peer.value);
        }
        self
    }

    /// Uses the median of the ratios of each round instead of the ratio of the medians.
    #[must_use]
    pub fn paired(mut self) -> Self {
        self.ratio = Some(median_ratio(&self.bgd_samples, &self.peer_samples));
        self
    }

    /// Sets the goal. Call it last, because it reads the figures.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self.met = match target {
            Target::RatioAtLeast(least) => self.ratio.map(|ratio| ratio >= least),
            Target::RatioAtMost(most) => self.ratio.map(|ratio| ratio <= most),
            Target::AtMost(most, _) => self.bgd.map(|figure| figure.value <= most),
        };
        self
    }

    /// Adds a note on how to read the row. Several notes are joined.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        let note = note.into();
        self.note = Some(self.note.map_or_else(|| note.clone(), |first| format!("{first}; {note}")));
        self
    }
}

/// Returns the runs' values for one cell of the table: a single text, or the minimum and the maximum.
fn range<T: Copy>(of: &[Option<T>], value: impl Fn(T) -> f64, show: impl Fn(T) -> String) -> String {
    let mut there: Vec<T> = of.iter().copied().flatten().collect();
    there.sort_by(|one, other| value(*one).total_cmp(&value(*other)));
    let (Some(least), Some(greatest)) = (there.first(), there.last()) else { return String::new() };
    let (least, greatest) = (show(*least), show(*greatest));
    if least == greatest {
        return least;
    }
    // Print the unit only once.
    match (least.split_once(' '), greatest.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}–{greatest}"),
        _ => format!("{least}–{greatest}"),
    }
}

/// Returns the rows of all runs as a table. Figures that differ show their minimum and maximum.
pub fn table(runs: &[Vec<Row>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["what", "peer", "peer's", "bgd", "ratio", "target", "met", "note"]);
    let mut seen = Vec::new();
    for row in runs.iter().flatten() {
        let same = |other: &&Row| (&other.what, &other.peer) == (&row.what, &row.peer);
        if seen.iter().any(same) {
            continue;
        }
        seen.push(row);
        let all: Vec<&Row> = runs.iter().flatten().filter(same).collect();
        let figure = |of: fn(&Row) -> Option<Figure>| {
            let figures: Vec<_> = all.iter().map(|row| of(row)).collect();
            range(&figures, |figure| figure.value, |figure| figure.to_string())
        };
        let ratios: Vec<_> = all.iter().map(|row| row.ratio).collect();
        // A goal missed in one run counts as missed.
        let met = all.iter().filter_map(|row| row.met).reduce(|one, other| one && other);
        table.add_row([
            row.what.clone(),
            row.peer.clone().unwrap_or_default(),
            figure(|row| row.peer_figure),
            figure(|row| row.bgd),
            range(&ratios, |ratio| ratio, |ratio| format!("{ratio:.2}")),
            row.target.map_or_else(String::new, |target| target.to_string()),
            met.map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
            row.note.clone().unwrap_or_default(),
        ]);
    }
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_runs_are_reported_as_ranges() {
        let run = |micros: f64| {
            let row = Row::new("a wake-up").bgd(Figure::new(micros, Unit::Micros));
            let row = row.peer("theirs", Figure::new(1000.0, Unit::Micros)).target(Target::RatioAtMost(1.0));
            vec![row]
        };
        let table = table(&[run(900.0), run(1100.0), run(1000.0)]).to_string();
        let line = table.lines().last().unwrap();
        let cells: Vec<&str> = line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["a wake-up", "theirs", "1.000 ms", "0.900–1.100 ms", "0.90–1.10", "≤ 1×", "NO"]);
        assert_eq!(range(&[None::<f64>], |ratio| ratio, |ratio| ratio.to_string()), "");
    }
}
