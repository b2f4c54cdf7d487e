"""Checks files for Kubernetes: every object against the strict schema of the newest version that
kubernetes-validate knows, an MPIJob against the models of kubeflow-training. Fields that do not
exist, lack, or have a wrong type are errors. scripts/check-kubernetes runs it.

kubeflow-training has the models of MPIJob v1, whose spec differs from v2beta1 in the fields listed
below; the rest, and what is in it, is the same."""
import re
import sys

import kubeflow.training as kubeflow
import kubernetes.client as client
import kubernetes_validate
import yaml

VERSION = kubernetes_validate.latest_version()

# What the MPI operator's v2beta1 has and v1 does not: the type, or the values.
ONLY_IN_V2 = {
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
    "runLauncherAsWorker": bool,
    "sshAuthMountPath": str,
}
ONLY_IN_V1 = ("cleanPodPolicy", "mainContainer")
# What the operator refuses although the model allows it, and what it requires.
VALUES = {"cleanPodPolicy": ("None", "Running", "All"), "restartPolicy": ("Never", "OnFailure")}
ROLES = ("Launcher", "Worker")


class Invalid(Exception):
    """A field and what is wrong with it."""


def expect(condition, path, message):
    if not condition:
        raise Invalid(f"{path}: {message}")


def check_by_schema(item):
    """Kubernetes's own kinds."""
    try:
        kubernetes_validate.validate(item, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Invalid(f"{'.'.join(map(str, error.path)) or 'the object'}: {error.message}") from None
    except kubernetes_validate.SchemaNotFoundError as error:
        raise Invalid(error.message) from None


PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def check_by_model(value, kind, path):
    """A value against the type that a model names: "int", "dict(str, V1Thing)", "V1Thing"."""
    if match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        expect(isinstance(value, dict), path, f"must be an object, not {value!r}")
        for key, each in value.items():
            check_by_model(each, match[1], f"{path}.{key}")
    elif match := re.fullmatch(r"list\[(.*)\]", kind):
        expect(isinstance(value, list), path, f"must be a list, not {value!r}")
        for i, each in enumerate(value):
            check_by_model(each, match[1], f"{path}.{i}")
    elif kind in PLAIN:
        wrong = kind != "bool" and isinstance(value, bool)
        expect(isinstance(value, PLAIN[kind]) and not wrong, path, f"must be {kind}, not {value!r}")
    elif kind not in ("object", "datetime"):
        check_fields(value, model(kind), path)


def model(name):
    return getattr(kubeflow, name, None) or getattr(client, name)


def check_fields(value, cls, path):
    """An object against the fields of a model; the model itself refuses what lacks."""
    expect(isinstance(value, dict), path, f"must be an object, not {value!r}")
    attributes = {field: attribute for attribute, field in cls.attribute_map.items()}
    for field, each in value.items():
        where = f"{path}.{field}" if path else field
        expect(field in attributes, where, f"{cls.__name__} has no such field")
        check_by_model(each, cls.openapi_types[attributes[field]], where)
    try:
        cls(**{attributes[field]: each for field, each in value.items()})
    except ValueError as error:
        raise Invalid(f"{path or 'the object'}: {error}") from None


def as_v1(spec):
    """Checks the fields of v2beta1 that v1 does not have; returns the others."""
    expect(isinstance(spec, dict), "spec", "must be an object")
    rest = dict(spec)
    for field in ONLY_IN_V1:
        expect(field not in spec, f"spec.{field}", "MPIJob v2beta1 has no such field")
    for field, allowed in ONLY_IN_V2.items():
        value = rest.pop(field, None)
        if value is None:
            continue
        right = isinstance(value, allowed) if isinstance(allowed, type) else value in allowed
        expect(right, f"spec.{field}", f"must be {allowed}, not {value!r}")
    return rest


def check_mpi_job(job):
    expect(job["apiVersion"] == "kubeflow.org/v2beta1", "apiVersion",
           f"must be kubeflow.org/v2beta1, not {job['apiVersion']!r}")
    check_fields({**job, "spec": as_v1(job.get("spec"))}, kubeflow.KubeflowOrgV1MPIJob, "")
    spec = job["spec"]
    policy = spec.get("runPolicy", {}).get("cleanPodPolicy")
    expect(policy in (None, *VALUES["cleanPodPolicy"]), "spec.runPolicy.cleanPodPolicy",
           f"must be one of {VALUES['cleanPodPolicy']}, not {policy!r}")
    replicas = spec["mpiReplicaSpecs"]
    expect("Launcher" in replicas, "spec.mpiReplicaSpecs", "lacks Launcher")
    for role, replica in replicas.items():
        path = f"spec.mpiReplicaSpecs.{role}"
        expect(role in ROLES, path, f"the roles are {ROLES}")
        for field in ("replicas", "template"):
            expect(field in replica, path, f"lacks {field}")
        expect("spec" in replica["template"], f"{path}.template", "lacks spec")
        policy = replica.get("restartPolicy", "Never")
        expect(policy in VALUES["restartPolicy"], f"{path}.restartPolicy",
               f"must be one of {VALUES['restartPolicy']}, not {policy!r}")
        # The pods also by Kubernetes's schema, which knows more than the models.
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()},
               "spec": replica["template"]["spec"]}
        try:
            check_by_schema(pod)
        except Invalid as error:
            raise Invalid(f"{path}.template.{error}") from None


def check_file(file):
    with open(file, encoding="utf-8") as stream:
        items = [item for item in yaml.safe_load_all(stream) if item is not None]
    expect(items, file, "there is nothing in it")
    for item in items:
        for field in ("apiVersion", "kind", "metadata"):
            expect(isinstance(item, dict) and field in item, "an object", f"lacks {field}")
        is_mpi_job = item["kind"] == "MPIJob"
        check_mpi_job(item) if is_mpi_job else check_by_schema(item)
        how = "Kubeflow's models" if is_mpi_job else "the schema"
        print(f"{file}: {item['kind']} {item['metadata'].get('name')}: valid by {how}")


def main(files):
    failed = False
    for file in files:
        try:
            check_file(file)
        except (Invalid, OSError, yaml.YAMLError) as error:
            print(f"{file}: {error}", file=sys.stderr)
            failed = True
    print(f"{len(files)} file(s) for Kubernetes {VERSION}: {'INVALID' if failed else 'valid'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
