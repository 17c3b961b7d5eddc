//! Stacks of this kernel against the rules, and a profile of a busy one.
