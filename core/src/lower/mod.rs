//! Graph to launch plan: fusion, memory plan.
