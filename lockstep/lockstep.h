// The front door: everything that a program which trains needs.
//
//   #include <lockstep/lockstep.h>
//   namespace ls = lockstep;
#pragma once

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/image/map_images.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/data/records.h"
#include "lockstep/graph/graph.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/tensor/safetensors.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/applications.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/distributed.h"
#include "lockstep/train/function.h"
#include "lockstep/train/history.h"
#include "lockstep/train/model.h"
#include "lockstep/train/multi_worker.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_many.h"
