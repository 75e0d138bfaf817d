//! x
fn main(){ let t=std::time::Instant::now(); let n=|i|std::env::args().nth(i).unwrap().parse::<usize>().unwrap(); println!("{:?} {:?}", fedbandit_tests::storage::check(n(1) as u64, fedbandit_tests::storage::Extent{steps:n(2),every:n(3),recoveries:n(4)}), t.elapsed()); }
