//! Pages of the tables of a store: models, messages and the audit log.

use fedbandit_core::Rewards;
use serde::{Deserialize, Serialize};

use super::audit::AuditEntry;
use super::event::{Event, ModelEvent, SummaryEvent};
use super::start::StartError;
use super::store::{Reader, StoreError, Table};
use super::terms::RunTerms;

/// Rows of the store that one page looks at. A page may have fewer rows than its limit, although others follow.
const SCAN: usize = 20_000;

/// Request for a page of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageQuery {
    /// Position after which the page starts, as in [`Page::next`]; none for the first page.
    pub after: Option<u64>,
    /// Number of rows; values outside of 1 to [`Self::MAX_LIMIT`] are replaced by the nearest bound.
    pub limit: usize,
    /// Permits the messages of a private run, which have no privacy guarantee.
    pub raw: bool,
}

impl PageQuery {
    /// Largest number of rows in a page.
    pub const MAX_LIMIT: usize = 1_000;
}

impl Default for PageQuery {
    fn default() -> Self {
        Self { after: None, limit: 100, raw: false }
    }
}

/// Page of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page<T> {
    /// Rows in the order of the store.
    pub rows: Vec<T>,
    /// Value of `after` for the next page; none if this is the last one.
    pub next: Option<u64>,
}

/// Broadcast model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseRow {
    episode: u32,
    episode_len: u32,
    rewards: &'static str,
    beta: f32,
    theta: Vec<f32>,
    design: Vec<f32>,
}

/// Received summary, admitted or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MessageRow {
    agent: u32,
    episode: u32,
    steps: u32,
    reward_sum: f32,
    gram: Vec<f32>,
    feature_sum: Vec<f32>,
}

/// Returns a page of the broadcast models.
///
/// # Errors
/// The store cannot be read or is corrupt.
pub fn releases(reader: &dyn Reader, terms: &RunTerms, query: PageQuery) -> Result<Page<ReleaseRow>, StartError> {
    page(reader, Table::Events, query, |number, bytes| {
        Ok(match event(terms, number, bytes)? {
            Event::Model(ModelEvent { episode, episode_len, beta, rewards, theta, design }) => {
                let rewards = if rewards == Rewards::Clipped { "clipped" } else { "unbounded" };
                Some(ReleaseRow { episode, episode_len, rewards, beta, theta, design })
            }
            _ => None,
        })
    })
}

/// Returns a page of the received summaries. Those of a private run have no noise; the query must permit them.
///
/// # Errors
/// The store cannot be read or is corrupt, or the run is private.
pub fn messages(reader: &dyn Reader, terms: &RunTerms, query: PageQuery) -> Result<Page<MessageRow>, ExportError> {
    if terms.config.privacy.is_some() && !query.raw {
        return Err(ExportError::Private);
    }
    Ok(page(reader, Table::Events, query, |number, bytes| {
        Ok(match event(terms, number, bytes)? {
            Event::Summary(SummaryEvent { agent, episode, steps, reward_sum, gram, feature_sum }) => {
                Some(MessageRow { agent: agent.0, episode, steps, reward_sum, gram, feature_sum })
            }
            _ => None,
        })
    })?)
}

/// Returns a page of the audit log.
///
/// # Errors
/// The store cannot be read or is corrupt.
pub fn audit(reader: &dyn Reader, query: PageQuery) -> Result<Page<AuditEntry>, StartError> {
    page(reader, Table::Audit, query, |_, bytes| {
        serde_json::from_slice(bytes).map(Some).map_err(|error| StoreError::new(error).into())
    })
}

/// Error returned by [`messages`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StartError),
    /// The run is private.
    #[error("the run is private and its messages contain no noise")]
    Private,
}

fn event(terms: &RunTerms, number: u64, bytes: &[u8]) -> Result<Event, StartError> {
    Event::from_bytes(bytes, terms.config.dim).ok_or(StartError::Event(number))
}

/// Returns the rows that a function makes of those of the store.
fn page<T>(
    reader: &dyn Reader,
    table: Table,
    query: PageQuery,
    mut row: impl FnMut(u64, &[u8]) -> Result<Option<T>, StartError>,
) -> Result<Page<T>, StartError> {
    let limit = query.limit.clamp(1, PageQuery::MAX_LIMIT);
    let Some(from) = query.after.map_or(Some(0), |after| after.checked_add(1)) else {
        return Ok(Page { rows: Vec::new(), next: None });
    };
    let (mut page, mut last, mut scanned) = (Page { rows: Vec::new(), next: None }, from, 0);
    let mut result = Ok(());
    reader.rows(table, from, &mut |number, bytes| {
        // This row exists, so another page follows.
        if page.rows.len() == limit || scanned == SCAN {
            page.next = Some(last);
            return false;
        }
        (last, scanned) = (number, scanned + 1);
        match row(number, bytes) {
            Ok(row) => page.rows.extend(row),
            Err(error) => result = Err(error),
        }
        result.is_ok()
    })?;
    result.map(|()| page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::store::{Memory, Store};

    #[test]
    fn pages_contain_every_row_once() {
        let mut store = Memory::default();
        let rows: Vec<Vec<u8>> = (0..2 * SCAN as u32 + 7).map(|row| row.to_le_bytes().to_vec()).collect();
        store.append(&rows).unwrap();
        // All rows, and two of them.
        for rare in [1, SCAN as u32 + 1] {
            let kept = |bytes: &[u8]| {
                let row = u32::from_le_bytes(bytes.try_into().unwrap());
                row.is_multiple_of(rare).then_some(row)
            };
            let (mut found, mut query) = (Vec::new(), PageQuery { limit: 999, ..PageQuery::default() });
            loop {
                let page = page(&store, Table::Events, query, |_, bytes| Ok(kept(bytes))).unwrap();
                assert!(page.rows.len() <= 999);
                found.extend(page.rows);
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => break,
                }
            }
            assert_eq!(found, rows.iter().filter_map(|row| kept(row)).collect::<Vec<_>>());
        }
        let beyond = PageQuery { after: Some(u64::MAX), ..PageQuery::default() };
        let page = page(&store, Table::Events, beyond, |_, _| Ok(Some(()))).unwrap();
        assert_eq!((page.rows.len(), page.next), (0, None));
    }
}
