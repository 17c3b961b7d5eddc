// Shared by the programs in the kernel and their driver in Rust.
#pragma once

// Which of the two programs: the one on trial, and the one before it.
#define WEIR_TRIAL 0
#define WEIR_BEFORE 1
