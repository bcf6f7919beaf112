"""--build of the benches: what a bench runs is looked for before it begins."""
import os
import sys

PROGRAMS = ("compute/k3", "iod/k3-iod")


def add_build(p, *programs, **more):
    """The option; programs: those in the build that the bench needs, the two by default."""
    def checked(build):
        for name in programs or PROGRAMS:
            path = os.path.join(build, name)
            if not os.path.exists(path):
                setup = "" if os.path.exists(os.path.join(build, "build.ninja")) else f"meson setup {build} && "
                sys.exit(f"{path} is not there: build all of the tree first, {setup}ninja -C {build}")
        return build

    p.add_argument("--build", type=checked, help="meson's build directory", **(more or {"required": True}))
