// EtcdAddress: where a job's etcd is, and what the job is called there:
// "etcd://host:port,host:port" or "etcd://host:port/job".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct EtcdAddress {
  std::vector<std::string> endpoints;  // "host:port" each
  std::string job = {};                // empty: not said
};

bool is_etcd_address(std::string_view text);
// UsageError where the text is none.
EtcdAddress parse_etcd_address(std::string_view text);
// UsageError unless it can be a part of a key: letters, digits, '-', '_', '.', at most 128 of them.
void check_etcd_job(std::string_view job);

}  // namespace lockstep
