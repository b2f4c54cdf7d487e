#include "lockstep/cluster/launch/remote.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

namespace lockstep::launch {
namespace {

// Reads a script, the number of whose lines stands before it, and runs it. One line without single
// quotes, since the login shell of the other host may be any.
const char* const kShellLine =
    "exec /bin/sh -c 'IFS= read -r n; e=$(printf \"\\n.\"); e=${e%.}; s=; "
    "while [ \"$n\" -gt 0 ]; do IFS= read -r l || exit 255; s=\"$s$l$e\"; n=$((n - 1)); done; "
    "eval \"$s\"'";

// Splits the cores that the shell may use among the workers of the host: needs index, peers and
// cores, which is 0 unless somebody said how many.
const char* const kShareCores = R"(
allowed=$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status)
set --
IFS=,
for range in $allowed; do
  core=${range%-*}
  while [ "$core" -le "${range#*-}" ]; do set -- "$@" "$core"; core=$((core + 1)); done
done
unset IFS
first=$((index * $# / peers)); end=$(((index + 1) * $# / peers))
if [ "$cores" -gt 0 ]; then
  if [ $((peers * cores)) -gt $# ]; then
    echo "--cores-per-worker $cores: $peers workers need $((peers * cores)) cores, and $# may be used" >&2
    exit 2
  fi
  first=$((index * cores)); end=$((first + cores))
fi
[ "$end" -gt "$first" ] || end=$((first + 1))
LOCKSTEP_CORES=$((end - first)); export LOCKSTEP_CORES
mine=; i=0
for core in "$@"; do
  if [ "$i" -ge "$first" ] && [ "$i" -lt "$end" ]; then mine="$mine,$core"; fi
  i=$((i + 1))
done
taskset -cp "${mine#,}" $$ >/dev/null 2>&1
)";

// Runs the program ("$@") in a session of its own, with a watcher beside it. The exit code comes
// through descriptor 5, so that the whole group can be killed behind the program. The shell of the
// group survives the signals that it passes on; the program does not inherit that. A program in the
// background would be deaf to SIGINT, hence the watcher is.
const char* const kRunAndWatch = R"(
trap : INT TERM HUP USR1
[ "$outlives" = 0 ] || trap "" PIPE
IFS= read -r secret || exit 255
exec 4<&0 </dev/null
(
  trap "" TERM HUP USR1
  while IFS= read -r signal; do kill -s "$signal" 0; done
  [ "$outlives" = 1 ] || kill -s KILL 0
) <&4 >/dev/null 2>&1 5>&- &
printf "%s\n" "$secret" | ( exec "$@" 3<&0 </dev/null 4<&- 5>&- )
echo "$?" >&5
kill -s KILL 0
)";

}  // namespace

std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

std::vector<std::string> ssh_words(const std::vector<std::string>& command,
                                   const std::string& host) {
  std::vector<std::string> words = command;
  if (std::filesystem::path(command.front()).filename() == "ssh") {
    for (const char* word : {"-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10"}) {
      words.emplace_back(word);
    }
  }
  words.push_back(host);
  words.emplace_back(kShellLine);
  return words;
}

std::string remote_input(const RemoteWorker& worker) {
  std::string script = fmt::format("cd -- {} || exit 126\n", quoted(worker.folder));
  for (const auto& [name, value] : worker.variables) {
    script += fmt::format("{}={}; export {}\n", name, quoted(value), name);
  }
  script += fmt::format("index={}; peers={}; cores={}", worker.seat.local_worker,
                        worker.seat.local_workers, worker.cores);
  script += kShareCores;
  script += "set --";
  for (const std::string& word : worker.program) script += " " + quoted(word);
  // The shell would report on standard error that the group was killed.
  script += fmt::format(
      "\nexec 6>&1 7>&2 2>/dev/null\n"
      "code=$(outlives={} exec setsid /bin/sh -c {} sh \"$@\" 5>&1 >&6 2>&7 6>&- 7>&-)\n"
      "exit \"${{code:-137}}\"\n",
      worker.outlives ? 1 : 0, quoted(kRunAndWatch));
  const auto lines = std::ranges::count(script, '\n');
  return fmt::format("{}\n{}{}\n", lines, script, worker.secret);
}

std::string remote_signal(int signal) {
  switch (signal) {
    case SIGINT:
      return "INT\n";
    case SIGTERM:
      return "TERM\n";
    case SIGUSR1:
      return "USR1\n";
    case SIGHUP:
      return "HUP\n";
    case SIGKILL:
      return "KILL\n";
    default:
      return "";
  }
}

}  // namespace lockstep::launch
