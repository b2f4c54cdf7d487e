#include "lockstep/cluster/etcd/etcd_address.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/in_quotes.h"

namespace lockstep {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::size_t kLongestJob = 128;

}  // namespace

bool is_etcd_address(std::string_view text) {
  return text.starts_with(kScheme);
}

void check_etcd_job(std::string_view job) {
  const auto plain = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
           (each >= '0' && each <= '9') || each == '-' || each == '_' || each == '.';
  };
  require(!job.empty() && job.size() <= kLongestJob && std::all_of(job.begin(), job.end(), plain),
          "[etcd] a job cannot be called {}: give it a name of letters, digits, '-', '_' and '.', "
          "at most {} of them",
          in_quotes(job), kLongestJob);
}

EtcdAddress parse_etcd_address(std::string_view text) {
  require(is_etcd_address(text),
          "[etcd] {} is no address of an etcd: write etcd://host:port, with commas between several",
          in_quotes(text));
  std::string_view rest = text.substr(kScheme.size());
  EtcdAddress address;
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    address.job = rest.substr(slash + 1);
    check_etcd_job(address.job);
    rest = rest.substr(0, slash);
  }
  while (true) {
    const std::size_t comma = rest.find(',');
    address.endpoints.push_back(
        parse_address(rest.substr(0, comma), "an endpoint of " + std::string(text)).text());
    if (comma == std::string_view::npos) return address;
    rest = rest.substr(comma + 1);
  }
}

}  // namespace lockstep
