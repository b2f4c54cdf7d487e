// The links between the workers of a job, of which this process is one: measured together with the
// others, and shown by the chief.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/output.h"
#include "lockstep/cluster/tls_files.h"
#include "lockstep/comm/link_probe.h"

namespace lockstep::cli {

struct ClusterLinks {
  bool chief = false;  // whether this process shows them
  std::string transport;
  std::vector<std::string> hosts;  // by worker
  std::vector<MeasuredLink> speeds;
};

// Joins the job and measures; the chief shows its progress on standard error. UsageError, which
// says how to start several, where this process is alone.
ClusterLinks measure_cluster_links(const TlsFiles& tls);

Json links_json(const ClusterLinks& links);
// Matrices for up to 16 workers; for more, a summary with the slowest links.
std::string links_text(const ClusterLinks& links);

}  // namespace lockstep::cli
