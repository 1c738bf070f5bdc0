//! Sets of whole numbers kept as ranges, for sequence numbers that mostly follow each other.

/// Disjoint ranges `[start, end)` in ascending order; ranges that touch are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Return how many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Say whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Return the ranges, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Return the lowest range.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().copied()
    }

    /// Say whether one number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let place = self.ranges.partition_point(|each| each.0 <= number);
        place > 0 && number < self.ranges[place - 1].1
    }

    /// Add `[start, end)`; an empty range changes nothing.
    pub fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // What comes in order needs no search.
        if let Some(last) = self.ranges.last_mut()
            && last.0 <= start
            && start <= last.1
        {
            last.1 = last.1.max(end);
            return;
        }
        let low = self.ranges.partition_point(|each| each.1 < start);
        let high = self.ranges.partition_point(|each| each.0 <= end);
        if low < high {
            start = start.min(self.ranges[low].0);
            end = end.max(self.ranges[high - 1].1);
        }
        self.ranges.splice(low..high, [(start, end)]);
    }

    /// Take `[start, end)` out, as far as it is in.
    pub fn discard(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let low = self.ranges.partition_point(|each| each.1 <= start);
        let high = self.ranges.partition_point(|each| each.0 < end);
        if low >= high {
            return;
        }
        let before = (self.ranges[low].0 < start).then_some((self.ranges[low].0, start));
        let after = (self.ranges[high - 1].1 > end).then_some((end, self.ranges[high - 1].1));
        self.ranges
            .splice(low..high, before.into_iter().chain(after));
    }

    /// Return the parts of `[start, end)` that are not in the set, lowest first.
    pub fn missing(&self, mut start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let place = self.ranges.partition_point(|each| each.1 <= start);
        for &(first, last) in &self.ranges[place..] {
            if start >= end || first >= end {
                break;
            }
            if start < first {
                found.push((start, first));
            }
            start = last;
        }
        if start < end {
            found.push((start, end));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;

    #[test]
    fn ranges_are_as_a_set_of_numbers() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let (mut set, mut model) = (RangeSet::default(), [false; 60]);
            for _ in 0..40 {
                let start = random.usize(0..60);
                let end = random.usize(start..=60);
                let is_in = random.bool();
                model[start..end].fill(is_in);
                if is_in {
                    set.add(start as u64, end as u64);
                } else {
                    set.discard(start as u64, end as u64);
                }
                let found: Vec<bool> = (0..60).map(|each| set.contains(each)).collect();
                assert_eq!(found, model);
                let ranges: Vec<_> = set.iter().collect();
                assert!(ranges.iter().all(|each| each.0 < each.1));
                assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
                let missing = set.missing(start as u64, end as u64);
                let count: u64 = missing.iter().map(|each| each.1 - each.0).sum();
                let expected = model[start..end].iter().filter(|each| !**each).count();
                assert_eq!(count, expected as u64);
                assert!(missing.iter().all(|each| !set.contains(each.0)));
            }
        }
    }
}
