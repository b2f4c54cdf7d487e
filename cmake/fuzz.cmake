# With LOCKSTEP_FUZZ, lockstep_fuzz_coverage(target) lets libFuzzer see which branches of a target's
# code an input takes, and what it is compared with. Clang's -fsanitize=fuzzer-no-link does the same,
# but all that share a precompiled header would have to be compiled with it.
function(lockstep_fuzz_coverage target)
  if(LOCKSTEP_FUZZ)
    target_compile_options(${target} PRIVATE
        -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
  endif()
endfunction()
