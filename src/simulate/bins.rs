//! Events over time, in bins of round widths.

const MS: i64 = 1_000_000;
pub(super) const SECOND: i64 = 1_000 * MS;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// The widths of bins in nanoseconds. Each divides the next one, so that neighboring bins can be merged.
#[rustfmt::skip]
const WIDTHS: [i64; 23] = [
    1_000, 10_000, 100_000, MS, 10 * MS, 100 * MS, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND,
    MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
    7 * DAY, 28 * DAY, 364 * DAY, 3640 * DAY,
];

/// The number of bins that are kept while events are added: the length of a log is known only at its end.
const MAX_BINS: usize = 4_000;

/// The events of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// The number of events.
    pub arrivals: i64,
    /// The number of denied events.
    pub denied: i64,
}

/// The number of events in bins of equal width, which widen as events are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// The index of the width.
    level: usize,
    /// The start of the first bin, in bin widths.
    first: i64,
    /// The time before which events belong to the last bin.
    end: i64,
    bins: Vec<Bin>,
}

impl Bins {
    /// Adds an event, which is not earlier than those before.
    #[inline(always)]
    pub(super) fn add(&mut self, time: i64, is_denied: bool) {
        if time >= self.end {
            self.extend_to(time);
        }
        if let Some(bin) = self.bins.last_mut() {
            bin.arrivals += 1;
            bin.denied += i64::from(is_denied);
        }
    }

    /// Appends bins up to the one of a time.
    fn extend_to(&mut self, time: i64) {
        if self.bins.is_empty() {
            self.first = time / self.width();
        }
        while time / self.width() - self.first >= MAX_BINS as i64 && self.widen() {}
        let last = time / self.width();
        self.bins.resize((last - self.first + 1) as usize, Bin::default());
        self.end = (last + 1).saturating_mul(self.width());
    }

    /// Returns the same events in at most `max_bins` bins, as narrow as the round widths allow. A single bin is
    /// at least a second wide: an axis of a microsecond is hard to read.
    #[must_use]
    pub fn within(&self, max_bins: usize) -> Bins {
        let mut merged = self.clone();
        while merged.bins.len() > max_bins && merged.widen() {}
        while merged.bins.len() == 1 && merged.width() < SECOND && merged.widen() {}
        merged
    }

    /// Returns the width of a bin, in nanoseconds.
    #[must_use]
    pub fn width(&self) -> i64 {
        WIDTHS[self.level]
    }

    /// Returns the start of the first bin, in nanoseconds since the clock's origin.
    #[must_use]
    pub fn start(&self) -> i64 {
        self.first * self.width()
    }

    /// Returns the bins, in order of time.
    #[must_use]
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Merges bins to those of the next width. Returns whether there is one.
    fn widen(&mut self) -> bool {
        let Some(next) = WIDTHS.get(self.level + 1) else { return false };
        let factor = next / self.width();
        let mut merged: Vec<Bin> = Vec::new();
        for (index, bin) in (self.first..).zip(&self.bins) {
            if merged.is_empty() || index % factor == 0 {
                merged.push(Bin::default());
            }
            if let Some(last) = merged.last_mut() {
                last.arrivals += bin.arrivals;
                last.denied += bin.denied;
            }
        }
        (self.bins, self.first, self.level) = (merged, self.first / factor, self.level + 1);
        true
    }
}
