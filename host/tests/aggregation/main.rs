//! Aggregation rules, the geometric median in depth, and the symmetric matrices they work on.

mod capped;
mod exploration;
mod geometric_median;
mod reference;
mod rules;
mod symmetric;
#[path = "../shared/uniform.rs"]
mod uniform;
mod whitened;
