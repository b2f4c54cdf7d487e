// simulate: a training step of N replicas, replayed from the step of one.
//
// Events on the compute stream, the communication stream and the link follow the dependencies of
// the plan. All replicas run the same plan, begin together, and meet in every collective. So
// whoever is slowest comes last to each of them, and its timeline is that of the step: one replica
// is replayed, however many there are, with the speed of the slowest of N, whose distribution
// follows from the measured one. tests/explain compares this with a replay of all of them.
//
// On a GPU, collectives run beside the compute stream, and slow it down while they do. On a CPU
// the computing thread itself adds up what the replicas of its process have computed, between two
// kernels (exec/host_runner.h); between hosts a thread of its own communicates, and takes its time
// from the computing one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/explain/collective_time.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/network.h"

namespace lockstep {

struct Scenario {
  int replicas = 1;
  int per_host = 1;    // replicas; the last host may have fewer
  double samples = 0;  // of each replica's piece; 0: as measured
  Link within = {};    // between devices of a host; on CPUs the measured times are used instead
  Link between = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::Best;  // of GPUs; CPUs have their own
  // How much longer a kernel takes while a collective runs beside it: 0.1 is a tenth.
  double slowed_by_communication = 0;
  double straggler = 1;  // how much slower one of the replicas is
};

enum class Lane { Compute, Communication, Link, Host };

struct TimelineEvent {
  int instruction = -1;  // -1: the host
  Lane lane = Lane::Compute;
  double begin = 0;  // seconds since the beginning of the step
  double end = 0;
  int cause = -1;  // the event for which it began no earlier: it ended when this one began
};

struct SimulatedCollective {
  int instruction = 0;
  std::string op = {};
  double bytes = 0;  // of the whole list
  double seconds = 0;
  double exposed = 0;          // while the compute stream had nothing to do
  double exposed_latency = 0;  // of that, what a faster link would leave
};

struct SimulatedStep {
  int replicas = 1;
  double samples = 0;  // of each replica
  double step_s = 0;   // median
  double p99_s = 0;
  double samples_per_s = 0;      // of all replicas
  double efficiency = 1;         // of so many times one replica alone
  double memory_bytes = 0;       // per replica
  double compute_s = 0;          // the compute stream is busy
  double sent_bytes = 0;         // by a replica, to the others
  double communication_s = 0;    // the link or the communication stream is
  double exposed_s = 0;          // communication that computation waits for
  double contention_s = 0;       // what computation takes longer than alone
  double synchronisation_s = 0;  // what the slowest replica takes longer than the median one
  double host_s = 0;
  std::vector<SimulatedCollective> collectives;
  std::vector<TimelineEvent> timeline;  // of a median step, in the order of their beginnings
  std::vector<int> critical_path;       // events, from the first to the last
};

SimulatedStep simulate(const MeasuredStep& step, const Scenario& scenario);

// The step of replicas that are this many times slower than the median one, each replayed on its
// own, and without efficiency: what simulate would be without the reasoning above.
double simulate_all_seconds(const MeasuredStep& step, const Scenario& scenario,
                            const std::vector<double>& factors);

// How much slower than a median step the slowest of N replicas is, at this quantile of all steps.
double slowest_of(const std::vector<double>& jitter, int replicas, double quantile,
                  double straggler = 1);

// How much longer computation takes while so many replicas of a host compute.
double contention_of(const MeasuredStep& step, int replicas);

// Seconds that a collective takes in the scenario; and of these those without any bandwidth.
struct CollectiveSeconds {
  double total = 0;
  double latency = 0;
  bool by_thread = false;  // the computing thread does it
};
CollectiveSeconds collective_seconds(const MeasuredStep& step, const MeasuredInstruction& of,
                                     const Scenario& scenario);

}  // namespace lockstep
